#include "core/integer.hpp"
#include "cuda/portable/merge/kernel.cuh"
#include "cuda/runtime/runtime_error.hpp"

namespace foveal::cuda::merging {

Status launch_merge(const MergeArgs& args, bool vectorised, void* stream) {
  const std::int64_t rows_per_block = kThreads / args.lanes_per_row;
  const auto blocks = static_cast<unsigned>(ceil_div(args.num_rows, rows_per_block));
  auto* on = static_cast<cudaStream_t>(stream);
  if (vectorised) {
    merge_kernel<kVectorElements><<<blocks, kThreads, 0, on>>>(args);
  } else {
    merge_kernel<1><<<blocks, kThreads, 0, on>>>(args);
  }
  return launch_status("cuda_merge");
}

}  // namespace foveal::cuda::merging
