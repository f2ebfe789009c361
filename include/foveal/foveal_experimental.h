/* Parts of foveal's C interface that may change between minor versions.
 *
 * The oracle: attention straight from the formulas of docs/numerics.md, in double, for tests. Slow
 * and plain on purpose; no plan ever runs it.
 *
 *   double lse[8];                               // attention.lse is fp32 [1, 4, 2]
 *   int64_t shape[3] = {1, 4, 2};
 *   const DLTensor lse_tensor = {lse, {kDLCPU, 0}, 3, {kDLFloat, 64, 1}, shape, NULL, 0};
 *   foveal_oracle_results results = {0};
 *   results.struct_size = sizeof results;
 *   results.lse = &lse_tensor;
 *   foveal_status status = foveal_oracle(&attention, NULL, &results);
 */
#ifndef FOVEAL_FOVEAL_EXPERIMENTAL_H_
#define FOVEAL_FOVEAL_EXPERIMENTAL_H_

#include <foveal/foveal.h>

#ifdef __cplusplus
extern "C" {
#endif
/* NOLINTBEGIN(readability-identifier-naming): C's names. */

typedef struct foveal_oracle_options {
  size_t struct_size; /* sizeof(foveal_oracle_options) */
  /* Rows of q to compute, as flat indices into [batch * seqlen_q] or [total_q]; the other rows of
   * out and lse become NaN. Forward only. num_rows 0: all. */
  const int64_t* rows;
  int64_t num_rows;
  int32_t use_given_out_and_lse; /* Backward: 1 takes out and lse from the tensors. */
  int32_t num_threads;           /* 0: as many as the machine has. */
} foveal_oracle_options;

/* Where the results go: float64 tensors in CPU memory, of the shape of the operand of the same name
 * (k and v: the cache after an append), any strides that don't overlap. NULL: not wanted. */
typedef struct foveal_oracle_results {
  size_t struct_size; /* sizeof(foveal_oracle_results) */
  const DLTensor* out;
  const DLTensor* lse;
  const DLTensor* dq;
  const DLTensor* dk;
  const DLTensor* dv;
  const DLTensor* dbias;
  const DLTensor* dsinks;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* q_rotated;
} foveal_oracle_results;

/* Computes `attention` (any pass, CPU memory) into `results` without writing to the operands.
 * `options` may be NULL. Asking for a result that the problem does not have is an error. */
FOVEAL_API foveal_status foveal_oracle(const foveal_attention* attention,
                                       const foveal_oracle_options* options,
                                       const foveal_oracle_results* results);

/* NOLINTEND(readability-identifier-naming) */
#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FOVEAL_FOVEAL_EXPERIMENTAL_H_ */
