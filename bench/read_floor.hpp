// Device functions of the benchmarks: data to read, a kernel that only reads
// it, and one that does nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace foveal::bench {

/// `count` fp16 numbers, nearly normal with unit variance; the same for the same seed.
void fill_normal(void* data, std::int64_t count, std::uint32_t seed, cudaStream_t stream);

/// Launches a kernel that does nothing, with 256 bytes of arguments.
void launch_nothing(cudaStream_t stream);

/// Reads `bytes` bytes once, a multiple of 16, every block an even share in one piece.
void read_all(const void* data, std::int64_t bytes, int num_blocks, cudaStream_t stream);

}  // namespace foveal::bench
