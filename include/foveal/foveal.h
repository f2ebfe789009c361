/* foveal's C interface: attention, forward and backward, planned once and run many times.
 *
 * Stable: within one SONAME a function keeps its meaning and a struct only grows at its end. C99,
 * no header of a GPU or a framework, tensors by DLPack. Nothing here throws, prints or aborts.
 *
 * One query attends to 8 keys, 4 query heads share 2 key/value heads:
 *
 *   #include <foveal/foveal.h>
 *   #include <stdio.h>
 *
 *   static float q[4 * 64], k[8 * 2 * 64], v[8 * 2 * 64], out[4 * 64];
 *
 *   int main(void) {
 *     int64_t q_shape[4] = {1, 1, 4, 64}, k_shape[4] = {1, 8, 2, 64};
 *     const DLDevice cpu = {kDLCPU, 0};
 *     const DLDataType fp32 = {kDLFloat, 32, 1};
 *     const DLTensor q_tensor = {q, cpu, 4, fp32, q_shape, NULL, 0};
 *     const DLTensor k_tensor = {k, cpu, 4, fp32, k_shape, NULL, 0};
 *     const DLTensor v_tensor = {v, cpu, 4, fp32, k_shape, NULL, 0};
 *     const DLTensor out_tensor = {out, cpu, 4, fp32, q_shape, NULL, 0};
 *
 *     foveal_attention attention = {0};
 *     attention.struct_size = sizeof attention;
 *     attention.q = &q_tensor;
 *     attention.k = &k_tensor;
 *     attention.v = &v_tensor;
 *     attention.out = &out_tensor;
 *     if (foveal_attention_run(&attention, NULL, NULL) != FOVEAL_OK) {
 *       fprintf(stderr, "%s\n", foveal_last_error());
 *       return 1;
 *     }
 *     return 0;
 *   }
 *
 * Whoever runs the same shapes again keeps a plan in place of the one call:
 *
 *   foveal_plan_create    once: checks the problem, chooses a kernel
 *   foveal_plan_run       each time: only launches, with a workspace of the caller's
 *   foveal_plan_release   at the end
 *
 * Threads: every function may be called from any thread at any time. A plan never changes, so many
 * threads may run one plan at once, each with its own workspace and stream. The pointers passed to
 * a call need to live until it returns (on a GPU the tensors' data until the stream is done).
 */
#ifndef FOVEAL_FOVEAL_H_
#define FOVEAL_FOVEAL_H_

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#include <foveal/export.h>

#ifdef __cplusplus
extern "C" {
#endif
/* NOLINTBEGIN(readability-identifier-naming): C's names. */

/* Counts the additions to this header. A program that was compiled against a lower number runs with
 * this library; foveal_abi_version() is the number of the library that was loaded. */
#define FOVEAL_ABI_VERSION 1

FOVEAL_API int32_t foveal_abi_version(void);

/* "0.1.0": the release, for people. */
FOVEAL_API const char* foveal_version(void);

/* What a call returns. The numbers never change. */
typedef int32_t foveal_status;
enum {
  FOVEAL_OK = 0,
  FOVEAL_INVALID_ARGUMENT = 1, /* The arguments contradict themselves or this header. */
  FOVEAL_UNSUPPORTED = 2,      /* Valid, but no kernel, device or build here can do it. */
  FOVEAL_OUT_OF_MEMORY = 3,    /* An allocation failed, or the workspace is too small. */
  FOVEAL_DEVICE_ERROR = 4,     /* The driver or runtime refused. */
  FOVEAL_IO_ERROR = 5,         /* Of the command line; no function here returns it. */
  FOVEAL_INTERNAL = 6          /* A fault of foveal's own; please report it. */
};

/* "ok", "invalid argument", ...; "unknown" for a number that is no status. Never NULL. */
FOVEAL_API const char* foveal_status_name(foveal_status status);

/* One sentence on the last call of this thread that failed: which argument, what was given, what is
 * allowed. A call that succeeds leaves it alone; "" when none has failed. Valid until the next
 * failure on the same thread. */
FOVEAL_API const char* foveal_last_error(void);

/* Structs that begin with struct_size: set the whole struct to 0, then struct_size to its sizeof. A
 * 0 or NULL always means "the default" or "not there". That is what lets library and caller be of
 * different versions: a field that the caller does not know is taken as 0, and a field that this
 * library does not know is refused where it is not 0, never ignored. */

/* What is computed. */
typedef int32_t foveal_pass;
enum {
  FOVEAL_FORWARD = 0,  /* out (and lse) from q, k, v; appends k_new and v_new first where given. */
  FOVEAL_BACKWARD = 1, /* dq, dk, dv (dbias, dsinks) from q, k, v, out, lse, dout (and dlse). */
  FOVEAL_APPEND = 2,   /* k_new and v_new into the cache, with rotary embedding of k_new and q. */
  FOVEAL_MERGE = 3     /* out and lse of the union of two disjoint sets of keys. */
};

/* A problem and its operands.
 *
 * A tensor is a view. DLTensor's `strides` count elements, may be 0 (expanded) or negative, and
 * NULL means row-major without gaps; `byte_offset` is added to `data`. Dimensions always come in
 * the order below, whatever the order in memory: [batch, heads, seqlen, dim] in memory is a matter
 * of strides (foveal_bhsd_strides). The device is kDLCPU or kDLCUDA (kDLCUDAHost counts as CPU,
 * kDLCUDAManaged as CUDA), the same for all.
 *
 * Element types: kDLFloat 16 or 32, kDLBfloat 16, kDLInt 32; a mask has 8 bits, code 6 (bool) or
 * kDLUInt; lanes 1. Whoever only plans may leave `data` NULL. */
typedef struct foveal_attention {
  size_t struct_size; /* sizeof(foveal_attention) */

  foveal_pass pass;
  int32_t causal;             /* 1: row i sees keys j <= i + seqlen_k - seqlen_q. */
  int32_t rotary_interleaved; /* 0: pairs (i, i + rotary_dim / 2); 1: (2i, 2i + 1). */
  int32_t deterministic;      /* 1: every output bitwise equal from run to run. */
  int32_t batch_invariant;    /* 1: a sequence's bits don't depend on its batch. */
  int32_t has_softmax_scale;  /* 0: 1 / sqrt(headdim), and softmax_scale is not read. */
  float softmax_scale;
  float softcap;            /* 0: off. */
  float dropout_p;          /* Probability to drop, in [0, 1]. */
  int32_t has_window;       /* 0: no window, and the two sizes are not read. */
  int64_t window_size_left; /* Keys left of the diagonal that a row sees; -1: all. */
  int64_t window_size_right;
  int64_t max_seqlen_q; /* Upper bounds of packed lengths; 0: the total. */
  int64_t max_seqlen_k;

  /* Of the dropout mask, a pure function of both. Where a pointer is given the value is read from
   * it when the kernel runs (device memory on a GPU). */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  const uint64_t* dropout_seed_ptr;
  const uint64_t* dropout_offset_ptr;

  /* [batch, seqlen_q, nheads_q, headdim]; packed [total_q, nheads_q, headdim] with cu_seqlens_q */
  const DLTensor* q;
  /* [batch, seqlen_k, nheads_k, headdim]; packed [total_k, nheads_k, headdim] with cu_seqlens_k;
   * paged [num_pages, page_size, nheads_k, headdim] with block_table. headdim_v in v's place of
   * headdim. Written when k_new and v_new are appended. */
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* out; /* As q, with headdim_v; q's type or fp32. */
  /* fp32 [batch, nheads_q, seqlen_q], packed [nheads_q, total_q]; the natural logarithm. */
  const DLTensor* lse;
  const DLTensor* dout; /* As out. */
  const DLTensor* dlse; /* As lse: the gradient of lse, where it is used. */
  const DLTensor* dq;   /* As q, k, v. */
  const DLTensor* dk;
  const DLTensor* dv;
  /* [batch or 1, nheads_q or 1, seqlen_q or 1, seqlen_k or 1] in q's type or fp32, added to the
   * scores; or a mask, whose 0 hides the key. */
  const DLTensor* bias;
  const DLTensor* dbias;
  const DLTensor* sinks; /* fp32 [nheads_q]: a logit that takes mass and adds no value. */
  const DLTensor* dsinks;
  const DLTensor* alibi_slopes; /* fp32 [nheads_q] or [batch, nheads_q]. */
  const DLTensor* cu_seqlens_q; /* int32 [batch + 1]: where each document begins. */
  const DLTensor* cu_seqlens_k;
  const DLTensor* seqused_q;       /* int32 [batch]: rows in use. */
  const DLTensor* seqused_k;       /* int32 [batch]: keys in use, before an append. */
  const DLTensor* leftpad_k;       /* int32 [batch]: keys to skip at the front. */
  const DLTensor* block_table;     /* int32 [batch, max_pages]. */
  const DLTensor* cache_batch_idx; /* int32 [batch]: the cache row of each sequence. */
  const DLTensor* k_new; /* [batch, seqlen_new, nheads_k, headdim], put at seqused_k[b]. */
  const DLTensor* v_new;
  const DLTensor* rotary_cos; /* [positions, rotary_dim / 2], q's type or fp32. */
  const DLTensor* rotary_sin;
  const DLTensor* q_rotated; /* As q: where FOVEAL_APPEND leaves the rotated q. */
  const DLTensor* out_a;     /* The two parts of FOVEAL_MERGE, as out and lse. */
  const DLTensor* lse_a;
  const DLTensor* out_b;
  const DLTensor* lse_b;
} foveal_attention;

/* Where to run. NULL for a pointer to it: where the tensors are, with the default threads. */
typedef struct foveal_device {
  size_t struct_size;  /* sizeof(foveal_device) */
  DLDevice device;     /* device_type 0: where the tensors are. */
  int32_t num_threads; /* CPU: how many workers; 0: FOVEAL_NUM_THREADS, else OpenMP's own number. */
  int32_t reserved;    /* 0 */
} foveal_device;

/* Strides of a [batch, seqlen, heads, dim] tensor that lies in memory as [batch, heads, seqlen,
 * dim] without gaps. */
FOVEAL_API void foveal_bhsd_strides(const int64_t shape[4], int64_t strides[4]);

/* A plan is immutable and counted: foveal_plan_create gives one reference. */
typedef struct foveal_plan foveal_plan;

/* Checks a problem and chooses its kernel. Cached, so that a repeated call is cheap. On an error
 * *plan is NULL. FOVEAL_UNSUPPORTED: foveal_last_error() has every kernel's reason. */
FOVEAL_API foveal_status foveal_plan_create(const foveal_attention* attention,
                                            const foveal_device* device, foveal_plan** plan);

/* One reference more, one less. Both take NULL; foveal_plan_retain returns its argument. */
FOVEAL_API foveal_plan* foveal_plan_retain(foveal_plan* plan);
FOVEAL_API void foveal_plan_release(foveal_plan* plan);

/* Bytes that foveal_plan_run needs, at FOVEAL_WORKSPACE_ALIGNMENT; often 0. 0 for NULL. */
#define FOVEAL_WORKSPACE_ALIGNMENT 256
FOVEAL_API size_t foveal_plan_workspace_bytes(const foveal_plan* plan);

/* The name of the chosen kernel; lives as long as the plan. "" for NULL. */
FOVEAL_API const char* foveal_plan_kernel(const foveal_plan* plan);

/* Microseconds that the planner expects; 0 for NULL. */
FOVEAL_API double foveal_plan_predicted_time_us(const foveal_plan* plan);

/* Runs `task(task_context, i)` for every i in [0, num_tasks), in any order and on any threads, and
 * returns when all are done. */
typedef void (*foveal_parallel_for)(void* context, int64_t num_tasks,
                                    void (*task)(void* task_context, int64_t index),
                                    void* task_context);

/* A thread pool of the caller's in place of OpenMP: the CPU's `stream`. */
typedef struct foveal_cpu_executor {
  size_t struct_size; /* sizeof(foveal_cpu_executor) */
  foveal_parallel_for parallel_for;
  void* context;
} foveal_cpu_executor;

/* Launches. `attention` has the problem that was planned (shapes, strides, types and options; all
 * are compared) with the data of this run. `workspace` may be NULL when the plan needs none.
 *
 * Results lie apart from what is read, and no two of their elements share a place: not checked.
 *
 * `stream` is on the CPU a `const foveal_cpu_executor*` or NULL (OpenMP), and the call returns when
 * the work is done; on CUDA it is a cudaStream_t or NULL (the default stream), and the call neither
 * allocates, nor waits, nor reads device memory, so that a graph may capture it. */
FOVEAL_API foveal_status foveal_plan_run(const foveal_plan* plan, const foveal_attention* attention,
                                         void* workspace, size_t workspace_bytes, void* stream);

/* Plans (from the cache), allocates the workspace and runs. `stream` as in foveal_plan_run. */
FOVEAL_API foveal_status foveal_attention_run(const foveal_attention* attention,
                                              const foveal_device* device, void* stream);

/* Explanations. Each function gives a string that the caller frees with foveal_string_free; on an
 * error *text or *json is NULL. JSON names its members as the fields of foveal::Explanation and
 * foveal::DeviceInfo (plan.hpp, device.hpp); later versions may add members. */
FOVEAL_API void foveal_string_free(char* string); /* Takes NULL. */

/* Why the plan is what it is: every kernel with its reason, workspace, work and predicted times. */
FOVEAL_API foveal_status foveal_plan_explain_text(const foveal_plan* plan, char** text);
FOVEAL_API foveal_status foveal_plan_explain_json(const foveal_plan* plan, char** json);

/* What would be planned on a device by name: "cpu", "cpu:4" (threads), "cuda:1", or a GPU family
 * that need not be here ("sm_120"). The tensors' own device and data are not looked at. Only an
 * invalid problem is an error; where no kernel can, "kernel" is "" and every verdict says why. */
FOVEAL_API foveal_status foveal_explain_text(const foveal_attention* attention,
                                             const char* device_name, char** text);
FOVEAL_API foveal_status foveal_explain_json(const foveal_attention* attention,
                                             const char* device_name, char** json);

/* An array with the devices of this machine, the CPU first. */
FOVEAL_API foveal_status foveal_devices_json(char** json);

/* How much a message matters. */
enum { FOVEAL_LOG_INFO = 0, FOVEAL_LOG_WARNING = 1 };
typedef void (*foveal_log_callback)(void* context, int32_t level, const char* message);

/* Hears of choices and fall-backs, from any thread that plans; it must not plan itself. One
 * listener for the process; NULL (the default) turns it off. A call that is under way on another
 * thread may still reach the listener that was just replaced. */
FOVEAL_API void foveal_set_log_callback(foveal_log_callback callback, void* context);

/* NOLINTEND(readability-identifier-naming) */
#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FOVEAL_FOVEAL_H_ */
