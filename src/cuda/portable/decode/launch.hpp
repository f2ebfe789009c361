// The decode instances as host functions; those of a build without CUDA don't exist.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/portable/decode/direct_args.hpp"

namespace foveal::cuda::decode {

struct DecodeGrid {
  std::int64_t num_blocks = 0;  ///< Splits of a unit, or blocks that share all work.
  std::int64_t num_heads = 1;   ///< kClusters: row tiles of all KV heads of a sequence.
  std::int64_t num_sequences = 1;
  int num_warps = 0;
  int cluster_size = 1;
};

/// kTiles x kTileRows packed query rows a block; rows of k and v padded to kHeaddim in shared
/// memory. Defined in instances/*.cu.
template <class Element, int kHeaddim, int kTiles>
[[nodiscard]] Status launch_instance(const DecodeArgs& args, const DecodeGrid& grid, void* stream);

/// The direct kernel. Defined in instances/direct_*.cu.
template <class Element, int kHeaddim>
[[nodiscard]] Status launch_direct_instance(const DirectArgs& args, const DecodeGrid& grid,
                                            void* stream);

/// The same for work that is shared evenly.
template <class Element, int kHeaddim>
[[nodiscard]] Status launch_direct_instance(const SharedDirectArgs& args, const DecodeGrid& grid,
                                            void* stream);

/// Calls the direct instance of a dtype and headdim.
[[nodiscard]] Status launch_direct(DType dtype, int headdim, const DirectArgs& args,
                                   const DecodeGrid& grid, void* stream);
[[nodiscard]] Status launch_direct(DType dtype, int headdim, const SharedDirectArgs& args,
                                   const DecodeGrid& grid, void* stream);

/// Calls the instance of a dtype, padded headdim and number of row tiles.
[[nodiscard]] Status launch_decode(DType dtype, int headdim_tile, int row_tiles,
                                   const DecodeArgs& args, const DecodeGrid& grid, void* stream);

/// A number that no other call has had and garbage has with probability 2^-64.
[[nodiscard]] std::uint64_t make_nonce();

}  // namespace foveal::cuda::decode
