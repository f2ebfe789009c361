/* Decoding over a preallocated cache in C: one new token a step, 8 query heads on 2 key/value
 * heads, a cache [heads, max_len, dim] of which a growing part is valid. One plan serves every
 * step: it appends the new token and attends. Each step is checked against attention in double.
 *
 *   cc decode_cache.c $(pkg-config --cflags --libs foveal) -lm -o decode_cache && ./decode_cache
 *
 * `--device cuda:0` records the 200 steps of a turn as one CUDA graph and replays it for the second
 * turn, whose lengths are others (../cuda/graph.h says how to compile for that).
 */
#include <foveal/foveal.h>
#include <foveal/foveal_experimental.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/graph.h"

enum { kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64, kSteps = 200, kTurns = 2 };
enum { kMaxLen = kTurns * kSteps }; /* The last step fills the cache. */

/* The weights of a row sum to 1. A kernel for bf16 may round each (by 2^-9 of it at most) before it
 * multiplies them with values, which here are at most 1; twice that is allowed. */
static const double kLimit = 1.0 / 256;

typedef uint16_t bf16; /* The upper half of a float. */

/* All that a turn reads and writes, as one block, so that a GPU has it at the same offsets. */
typedef struct turn_memory {
  bf16 k_cache[kHeadsK][kMaxLen][kHeadDim], v_cache[kHeadsK][kMaxLen][kHeadDim];
  bf16 q[kSteps][kHeadsQ][kHeadDim];
  bf16 k_new[kSteps][kHeadsK][kHeadDim], v_new[kSteps][kHeadsK][kHeadDim];
  float out[kSteps][kHeadsQ][kHeadDim];
  int32_t valid_len[kSteps]; /* Tokens in the cache before each step. */
} turn_memory;

/* A step's problem with the tensors that it points to. */
typedef struct step_operands {
  DLTensor q, k, v, out, seqused_k, k_new, v_new;
  foveal_attention attention;
} step_operands;

/* Dimensions are always [batch, seqlen, heads, dim]; the order in memory is a matter of strides,
 * and none means row-major without gaps. */
static int64_t q_shape[4] = {1, 1, kHeadsQ, kHeadDim}, new_shape[4] = {1, 1, kHeadsK, kHeadDim};
static int64_t cache_shape[4] = {1, kMaxLen, kHeadsK, kHeadDim}, batch[1] = {1};
static int64_t cache_strides[4] = {0, kHeadDim, kMaxLen* kHeadDim, 1};

/* Only addresses: `at` may be a GPU's memory. The length is read when the step runs, so that a
 * graph goes on where the cache then ends. */
static void set_step(step_operands* step, DLDevice device, turn_memory* at, int index) {
  const DLDataType bfloat = {kDLBfloat, 16, 1}, fp32 = {kDLFloat, 32, 1}, int32 = {kDLInt, 32, 1};
  const step_operands operands = {
      .q = {at->q[index], device, 4, bfloat, q_shape, NULL, 0},
      .k = {at->k_cache, device, 4, bfloat, cache_shape, cache_strides, 0},
      .v = {at->v_cache, device, 4, bfloat, cache_shape, cache_strides, 0},
      .out = {at->out[index], device, 4, fp32, q_shape, NULL, 0},
      .seqused_k = {&at->valid_len[index], device, 1, int32, batch, NULL, 0},
      .k_new = {at->k_new[index], device, 4, bfloat, new_shape, NULL, 0},
      .v_new = {at->v_new[index], device, 4, bfloat, new_shape, NULL, 0},
      .attention = {.struct_size = sizeof(foveal_attention),
                    .q = &step->q,
                    .k = &step->k,
                    .v = &step->v,
                    .out = &step->out,
                    .seqused_k = &step->seqused_k,
                    .k_new = &step->k_new,
                    .v_new = &step->v_new}};
  *step = operands;
}

typedef struct decoder {
  DLDevice device;
  foveal_plan* plan;
} decoder;

static int fail(void) {
  fprintf(stderr, "%s\n", foveal_last_error());
  return 2;
}

/* The steps of a turn on `stream`: NULL is OpenMP on the CPU. A gpu_launch. */
static int run_steps(void* context, void* at, void* workspace, void* stream) {
  const decoder* self = context;
  const size_t bytes = foveal_plan_workspace_bytes(self->plan);
  step_operands step;
  int index;
  for (index = 0; index < kSteps; ++index) {
    set_step(&step, self->device, at, index);
    if (foveal_plan_run(self->plan, &step.attention, workspace, bytes, stream) != FOVEAL_OK) {
      return fail();
    }
  }
  return 0;
}

/* `count` numbers from -limit to limit, the same in every run. */
static void fill(bf16* values, size_t count, float limit) {
  static uint32_t seed = 1;
  size_t i;
  for (i = 0; i < count; ++i) {
    float value;
    uint32_t bits;
    seed = seed * 1664525u + 1013904223u;
    value = limit * (float)(int32_t)seed / 2147483648.0f;
    memcpy(&bits, &value, sizeof bits);
    values[i] = (bf16)(bits >> 16);
  }
}

static void set_turn(turn_memory* host, int turn) {
  int index;
  fill(host->q[0][0], sizeof host->q / sizeof(bf16), 8); /* They prefer some keys clearly. */
  fill(host->k_new[0][0], sizeof host->k_new / sizeof(bf16), 1);
  fill(host->v_new[0][0], sizeof host->v_new / sizeof(bf16), 1);
  for (index = 0; index < kSteps; ++index) host->valid_len[index] = turn * kSteps + index;
}

/* The largest difference of a turn from attention in double; infinite where a new token is not in
 * its place in the cache. Later steps' tokens lie behind a step's length, where no step looks. */
static double largest_error(turn_memory* host) {
  static double expected[kHeadsQ][kHeadDim];
  const DLDevice cpu = {kDLCPU, 0};
  const DLTensor out = {expected, cpu, 4, {kDLFloat, 64, 1}, q_shape, NULL, 0};
  foveal_oracle_options options = {.struct_size = sizeof options, .num_threads = 1};
  foveal_oracle_results results = {.struct_size = sizeof results, .out = &out};
  step_operands step;
  double worst = 0;
  int index, head, dim;
  for (index = 0; index < kSteps; ++index) {
    const int at = host->valid_len[index];
    set_step(&step, cpu, host, index);
    if (foveal_oracle(&step.attention, &options, &results) != FOVEAL_OK) return HUGE_VAL;
    for (head = 0; head < kHeadsQ; ++head) {
      for (dim = 0; dim < kHeadDim; ++dim) {
        const double error = fabs(host->out[index][head][dim] - expected[head][dim]);
        if (!(error <= worst)) worst = isnan(error) ? HUGE_VAL : error;
      }
    }
    for (head = 0; head < kHeadsK; ++head) {
      if (memcmp(host->k_cache[head][at], host->k_new[index][head], kHeadDim * sizeof(bf16)) ||
          memcmp(host->v_cache[head][at], host->v_new[index][head], kHeadDim * sizeof(bf16))) {
        return HUGE_VAL;
      }
    }
  }
  return worst;
}

int main(int argc, char** argv) {
  static turn_memory host; /* Too large for a stack. */
  decoder self = {{kDLCPU, 0}, NULL};
  step_operands first;
  gpu_graph* graph = NULL;
  void* workspace = NULL;
  double worst = 0;
  int failed = 0, turn;

  if (argc == 3 && strcmp(argv[1], "--device") == 0 &&
      sscanf(argv[2], "cuda:%d", &self.device.device_id) == 1) {
    self.device.device_type = kDLCUDA;
  } else if (argc != 1 && !(argc == 3 && strcmp(argv[2], "cpu") == 0)) {
    fprintf(stderr, "usage: %s [--device cpu | cuda:0]\n", argv[0]);
    return 2;
  }
  /* A plan is made for shapes, strides and types: every step has those of the first. */
  set_step(&first, self.device, &host, 0);
  if (foveal_plan_create(&first.attention, NULL, &self.plan) != FOVEAL_OK) return fail();
  const size_t alignment = FOVEAL_WORKSPACE_ALIGNMENT;
  const size_t bytes = foveal_plan_workspace_bytes(self.plan);
  if (self.device.device_type == kDLCUDA) {
    graph = gpu_graph_record(self.device.device_id, sizeof host, bytes, run_steps, &self);
    failed = graph == NULL;
  } else {
    workspace = aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    failed = workspace == NULL;
  }
  /* Behind the valid length anything may lie: NaN here. */
  memset(host.k_cache, 0xff, sizeof host.k_cache);
  memset(host.v_cache, 0xff, sizeof host.v_cache);
  for (turn = 0; turn < kTurns && !failed; ++turn) {
    set_turn(&host, turn);
    failed =
        graph != NULL ? gpu_graph_replay(graph, &host) : run_steps(&self, &host, workspace, NULL);
    if (!failed) worst = fmax(worst, largest_error(&host));
  }
  if (!failed) {
    printf("%d steps by %s, largest error %.2g, at most %.2g is allowed\n", kTurns * kSteps,
           foveal_plan_kernel(self.plan), worst, kLimit);
  }
  gpu_graph_free(graph);
  free(workspace);
  foveal_plan_release(self.plan);
  return failed ? 2 : worst <= kLimit ? 0 : 1;
}
