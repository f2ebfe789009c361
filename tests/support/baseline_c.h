/* The plain same-dtype baseline behind a C function, so that the Python tests can hold it against
 * PyTorch's math path. Built as the shared library `foveal_baseline`; dense tensors without gaps.
 */
#ifndef FOVEAL_TESTS_SUPPORT_BASELINE_C_H_
#define FOVEAL_TESTS_SUPPORT_BASELINE_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values of foveal_baseline_args.dtype. */
enum { FOVEAL_BASELINE_FP16 = 1, FOVEAL_BASELINE_BF16 = 2, FOVEAL_BASELINE_FP32 = 3 };

typedef struct foveal_baseline_args {
  size_t struct_size; /* sizeof(foveal_baseline_args) */
  int32_t dtype;      /* of q, k, v, dout, out, dq, dk, dv */
  int32_t causal;     /* aligned bottom right */
  int64_t batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim, headdim_v;
  int64_t window_size_left, window_size_right; /* -1: unbounded */
  float softmax_scale;                         /* 0: 1 / sqrt(headdim) */
  float softcap;                               /* 0: off */
  float keep_scale;                            /* with `keep`: 1 / (1 - dropout_p) */
  const void* q;                               /* [batch, seqlen_q, nheads_q, headdim] */
  const void* k;                               /* [batch, seqlen_k, nheads_k, headdim] */
  const void* v;                               /* [batch, seqlen_k, nheads_k, headdim_v] */
  const void* dout;    /* [batch, seqlen_q, nheads_q, headdim_v]; NULL: forward only */
  const float* bias;   /* [batch, nheads_q, seqlen_q, seqlen_k] or NULL; -inf hides a key */
  const float* sinks;  /* [nheads_q] or NULL */
  const float* dlse;   /* [batch, nheads_q, seqlen_q] or NULL */
  const uint8_t* keep; /* dropout's mask, as bias, or NULL */
  void* out;           /* as q with headdim_v; every output may be NULL */
  float* lse;          /* [batch, nheads_q, seqlen_q] */
  void *dq, *dk, *dv;  /* as q, k, v */
  float* dbias;        /* as bias */
  float* dsinks;       /* [nheads_q], summed over the batch */
} foveal_baseline_args;

/* 0 when done, 1 when the arguments make no sense. */
int foveal_baseline(const foveal_baseline_args* args);

#ifdef __cplusplus
}
#endif

#endif /* FOVEAL_TESTS_SUPPORT_BASELINE_C_H_ */
