#include "cuda/runtime/tensor_map.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/format.hpp"
#include "cuda/runtime/runtime_error.hpp"

namespace foveal::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, looked up so that the library loads where there is no driver.
Result<Encode> find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return to_status(error, "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return Status::unsupported("this driver has no cuTensorMapEncodeTiled: it is older than 12.0");
  }
  return reinterpret_cast<Encode>(function);
}

/// Makes the runtime's context the driver's on this thread. The runtime does so itself at a
/// thread's first launch, which is yet to come.
Status bind_context() {
  int device = 0;
  FOVEAL_RETURN_IF_ERROR(to_status(cudaGetDevice(&device), "cudaGetDevice"));
  return to_status(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace

Status encode_tensor_map(const TensorMapShape& shape, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  static const Result<Encode> encode = find_encode();
  if (!encode) return encode.status();
  constexpr cuuint64_t kElementBytes = 2;
  cuuint64_t extents[4];
  cuuint64_t strides[3];
  for (std::size_t i = 0; i < 4; ++i) extents[i] = static_cast<cuuint64_t>(shape.extents[i]);
  for (std::size_t i = 0; i < 3; ++i) {
    // The stride of a dimension of one element is never used, but checked.
    const bool used = shape.extents[i + 1] > 1;
    strides[i] = used ? static_cast<cuuint64_t>(shape.strides[i]) * kElementBytes : 16;
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(shape.box_columns),
                             static_cast<cuuint32_t>(shape.box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const auto encode_once = [&] {
    // Bits are copied: fp16 stands for bf16 too.
    return (*encode)(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                     const_cast<void*>(shape.data), extents, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE,
                     shape.box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                     : shape.box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                               : CU_TENSOR_MAP_SWIZZLE_32B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode_once();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    FOVEAL_RETURN_IF_ERROR(bind_context());
    result = encode_once();
  }
  if (result == CUDA_SUCCESS) return Status::ok();
  return Status::internal(concat("cuTensorMapEncodeTiled: CUDA error ", static_cast<int>(result)));
}

}  // namespace foveal::cuda
