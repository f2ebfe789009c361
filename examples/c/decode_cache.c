/* Decoding over a preallocated cache in C: one new token a step, 8 query heads on 2 key/value
 * heads, a cache that lies in memory as [heads, max_len, dim] and of which a growing part is valid.
 * The plan is made once; each step appends the new token and attends, in one launch, and is checked
 * against attention in double.
 *
 *   cc decode_cache.c $(pkg-config --cflags --libs foveal) -lm -o decode_cache && ./decode_cache
 */
#include <foveal/foveal.h>
#include <foveal/foveal_experimental.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64, kMaxLen = 256, kSteps = 200 };

static float q[kHeadsQ * kHeadDim], out[kHeadsQ * kHeadDim];
static float k_new[kHeadsK * kHeadDim], v_new[kHeadsK * kHeadDim];
static float k_cache[kHeadsK * kMaxLen * kHeadDim], v_cache[kHeadsK * kMaxLen * kHeadDim];
static int32_t valid_len;

/* Numbers between -1 and 1, the same in every run. */
static void fill(float* values, int count, uint32_t seed) {
  int i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(int32_t)seed / 2147483648.0f;
  }
}

static DLTensor view(void* data, int ndim, int64_t* shape, int64_t* strides) {
  DLTensor tensor = {0};
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = ndim;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  tensor.strides = strides; /* NULL: row-major without gaps */
  return tensor;
}

/* The largest difference from attention in double. */
static double error_of_step(const foveal_attention* attention, int64_t* q_shape) {
  static double expected[kHeadsQ * kHeadDim];
  DLTensor expected_tensor = view(expected, 4, q_shape, NULL);
  foveal_oracle_results results = {0};
  double worst = 0;
  int i;
  expected_tensor.dtype.bits = 64;
  results.struct_size = sizeof results;
  results.out = &expected_tensor;
  if (foveal_oracle(attention, NULL, &results) != FOVEAL_OK) return HUGE_VAL;
  for (i = 0; i < kHeadsQ * kHeadDim; ++i) worst = fmax(worst, fabs(out[i] - expected[i]));
  return worst;
}

int main(void) {
  /* Dimensions are always [batch, seqlen, heads, dim]; the cache's order in memory is strides. */
  int64_t q_shape[4] = {1, 1, kHeadsQ, kHeadDim}, new_shape[4] = {1, 1, kHeadsK, kHeadDim};
  int64_t cache_shape[4] = {1, kMaxLen, kHeadsK, kHeadDim}, cache_strides[4], batch[1] = {1};
  foveal_attention attention = {0};
  foveal_plan* plan = NULL;
  foveal_status status;
  double worst = 0;
  int step;

  foveal_bhsd_strides(cache_shape, cache_strides);
  const DLTensor q_tensor = view(q, 4, q_shape, NULL), out_tensor = view(out, 4, q_shape, NULL);
  const DLTensor k_tensor = view(k_cache, 4, cache_shape, cache_strides);
  const DLTensor v_tensor = view(v_cache, 4, cache_shape, cache_strides);
  const DLTensor k_new_tensor = view(k_new, 4, new_shape, NULL);
  const DLTensor v_new_tensor = view(v_new, 4, new_shape, NULL);
  DLTensor len_tensor = view(&valid_len, 1, batch, NULL);
  len_tensor.dtype.code = kDLInt;

  attention.struct_size = sizeof attention;
  attention.q = &q_tensor;
  attention.k = &k_tensor;
  attention.v = &v_tensor;
  attention.out = &out_tensor;
  attention.seqused_k = &len_tensor; /* Tokens before the append. */
  attention.k_new = &k_new_tensor;
  attention.v_new = &v_new_tensor;

  status = foveal_plan_create(&attention, NULL, &plan);
  size_t bytes = foveal_plan_workspace_bytes(plan);
  void* workspace = NULL;
  if (status == FOVEAL_OK && bytes > 0) {
    /* aligned_alloc takes whole multiples of the alignment. */
    const size_t alignment = FOVEAL_WORKSPACE_ALIGNMENT;
    workspace = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (workspace == NULL) return 1;
  }
  for (step = 0; step < kSteps && status == FOVEAL_OK; ++step) {
    fill(q, kHeadsQ * kHeadDim, 3u * (uint32_t)step);
    fill(k_new, kHeadsK * kHeadDim, 3u * (uint32_t)step + 1);
    fill(v_new, kHeadsK * kHeadDim, 3u * (uint32_t)step + 2);
    status = foveal_plan_run(plan, &attention, workspace, bytes, NULL);
    if (status == FOVEAL_OK) worst = fmax(worst, error_of_step(&attention, q_shape));
    ++valid_len;
  }
  if (status != FOVEAL_OK) {
    fprintf(stderr, "%s: %s\n", foveal_status_name(status), foveal_last_error());
  } else {
    printf("%d steps by %s, largest error %.2g\n", kSteps, foveal_plan_kernel(plan), worst);
  }
  free(workspace);
  foveal_plan_release(plan);
  return status == FOVEAL_OK && worst < 1e-5 ? 0 : 1;
}
