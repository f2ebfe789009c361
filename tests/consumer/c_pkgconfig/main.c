/* A C99 program that uses an installed foveal through pkg-config: one query per head attends to
 * eight keys, 4 query heads on 2 key/value heads. All queries are 0, so out is the mean of the
 * values (key j of head h holds 100 * h + j) and lse is ln 8. */
#include <foveal/foveal.h>
#include <math.h>
#include <stdio.h>

enum { kHeads = 4, kKvHeads = 2, kKeys = 8, kHeadDim = 16 };

static float q[kHeads * kHeadDim], k[kKeys * kKvHeads * kHeadDim], v[kKeys * kKvHeads * kHeadDim];
static float out[kHeads * kHeadDim], lse[kHeads];
static int64_t q_shape[4] = {1, 1, kHeads, kHeadDim};
static int64_t k_shape[4] = {1, kKeys, kKvHeads, kHeadDim};
static int64_t lse_shape[3] = {1, kHeads, 1};

static DLTensor fp32_tensor(float* data, int32_t ndim, int64_t* shape) {
  DLTensor tensor = {0};
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = ndim;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  return tensor;
}

/* How many of the results differ from the known ones. */
static int count_wrong(void) {
  int wrong = 0, h, d;
  for (h = 0; h < kHeads; ++h) {
    const float mean = 100.0f * (float)(h / (kHeads / kKvHeads)) + (kKeys - 1) / 2.0f;
    wrong += fabs(lse[h] - log((double)kKeys)) > 1e-6;
    for (d = 0; d < kHeadDim; ++d) wrong += fabs(out[h * kHeadDim + d] - mean) > 1e-4;
  }
  return wrong;
}

int main(void) {
  const DLTensor q_tensor = fp32_tensor(q, 4, q_shape), k_tensor = fp32_tensor(k, 4, k_shape);
  const DLTensor v_tensor = fp32_tensor(v, 4, k_shape), out_tensor = fp32_tensor(out, 4, q_shape);
  const DLTensor lse_tensor = fp32_tensor(lse, 3, lse_shape);
  foveal_attention attention = {0};
  foveal_plan* plan = NULL;
  int wrong = 0, i;

  for (i = 0; i < kKeys * kKvHeads * kHeadDim; ++i) {
    const int key = i / (kKvHeads * kHeadDim), head = i / kHeadDim % kKvHeads;
    k[i] = 1.0f;
    v[i] = (float)(100 * head + key);
  }
  attention.struct_size = sizeof attention;
  attention.q = &q_tensor;
  attention.k = &k_tensor;
  attention.v = &v_tensor;
  attention.out = &out_tensor;
  attention.lse = &lse_tensor;

  /* The one call, and the same problem as a plan. */
  if (foveal_attention_run(&attention, NULL, NULL) != FOVEAL_OK) goto failed;
  wrong += count_wrong();
  if (foveal_plan_create(&attention, NULL, &plan) != FOVEAL_OK) goto failed;
  printf("foveal %s, kernel %s, %d wrong\n", foveal_version(), foveal_plan_kernel(plan), wrong);
  foveal_plan_release(plan);

  /* An error is a code and a sentence. */
  k_shape[3] = kHeadDim - 1;
  wrong += foveal_attention_run(&attention, NULL, NULL) != FOVEAL_INVALID_ARGUMENT;
  wrong += foveal_last_error()[0] == '\0';
  return wrong == 0 ? 0 : 1;

failed:
  fprintf(stderr, "foveal: %s\n", foveal_last_error());
  return 1;
}
