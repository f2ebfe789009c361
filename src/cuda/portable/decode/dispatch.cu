// From run-time values to an instance.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <random>

#include "core/format.hpp"
#include "cuda/portable/decode/launch.hpp"

namespace foveal::cuda::decode {
namespace {

template <class Element>
Status launch_of(int headdim_tile, int row_tiles, const DecodeArgs& args, const DecodeGrid& grid,
                 void* stream) {
  switch (headdim_tile) {
    case 64:
      return row_tiles == 1 ? launch_instance<Element, 64, 1>(args, grid, stream)
                            : launch_instance<Element, 64, 4>(args, grid, stream);
    case 128:
      return row_tiles == 1 ? launch_instance<Element, 128, 1>(args, grid, stream)
                            : launch_instance<Element, 128, 4>(args, grid, stream);
    case 256:
      return row_tiles == 1 ? launch_instance<Element, 256, 1>(args, grid, stream)
                            : launch_instance<Element, 256, 2>(args, grid, stream);
    default: return launch_instance<Element, 512, 1>(args, grid, stream);
  }
}

template <class Element, class Args>
Status launch_direct_of(int headdim, const Args& args, const DecodeGrid& grid, void* stream) {
  switch (headdim) {
    case 64: return launch_direct_instance<Element, 64>(args, grid, stream);
    case 128: return launch_direct_instance<Element, 128>(args, grid, stream);
    default: return launch_direct_instance<Element, 256>(args, grid, stream);
  }
}

/// SplitMix64 (Steele et al. 2014): a bijection, so that different counts give different numbers.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

std::uint64_t random_start() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

Status launch_decode(DType dtype, int headdim_tile, int row_tiles, const DecodeArgs& args,
                     const DecodeGrid& grid, void* stream) {
  return dtype == DType::kFloat16
             ? launch_of<__half>(headdim_tile, row_tiles, args, grid, stream)
             : launch_of<__nv_bfloat16>(headdim_tile, row_tiles, args, grid, stream);
}

Status launch_direct(DType dtype, int headdim, const DirectArgs& args, const DecodeGrid& grid,
                     void* stream) {
  return dtype == DType::kFloat16 ? launch_direct_of<__half>(headdim, args, grid, stream)
                                  : launch_direct_of<__nv_bfloat16>(headdim, args, grid, stream);
}

Status launch_direct(DType dtype, int headdim, const SharedDirectArgs& args, const DecodeGrid& grid,
                     void* stream) {
  return dtype == DType::kFloat16 ? launch_direct_of<__half>(headdim, args, grid, stream)
                                  : launch_direct_of<__nv_bfloat16>(headdim, args, grid, stream);
}

std::uint64_t make_nonce() {
  static std::atomic<std::uint64_t> count{random_start()};
  const std::uint64_t nonce = mix(count.fetch_add(1, std::memory_order_relaxed));
  return nonce == 0 ? make_nonce() : nonce;  // 0 is a cleared flag
}

}  // namespace foveal::cuda::decode
