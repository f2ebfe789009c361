// Launches the kernels of one element type and head size.
#pragma once

#include <foveal/status.hpp>

#include "cuda/portable/bwd/dbias.cuh"
#include "cuda/portable/bwd/kernel.cuh"
#include "cuda/portable/bwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::bwd {

template <class Element, class Tile, bool kGeneral>
Status launch_gradients(const char* name, const BackwardArgs& args, void* stream) {
  static SharedMemoryGrant grant;
  const TileSchedule& schedule = Tile::tile.side == Side::kKeys ? args.keys : args.rows;
  const LaunchShape shape{.num_blocks = schedule.num_blocks,
                          .num_threads = Tile::tile.threads(),
                          .shared_bytes = shared_map(Tile::tile, sizeof(Element)).bytes,
                          .stream = stream};
  return launch_kernel(name, gradient_kernel<Element, Tile, kGeneral>, args, shape, grant);
}

// fp32 has one kernel a side, for everything.
template <class Element, int kHeaddim>
Status GradientLaunches<Element, kHeaddim>::keys(const BackwardArgs& args, bool large,
                                                 void* stream) {
  constexpr const char* kName = "gradients of k and v";
  if constexpr (sizeof(Element) == 2) {
    using Large = TileOf<kHeaddim, sizeof(Element), TileName::kKeysLarge>;
    if (large) return launch_gradients<Element, Large, false>(kName, args, stream);
  }
  using Small = TileOf<kHeaddim, sizeof(Element), TileName::kKeysSmall>;
  return launch_gradients<Element, Small, true>(kName, args, stream);
}

template <class Element, int kHeaddim>
Status GradientLaunches<Element, kHeaddim>::rows(const BackwardArgs& args, bool large,
                                                 void* stream) {
  constexpr const char* kName = "gradient of q";
  if constexpr (sizeof(Element) == 2) {
    using Large = TileOf<kHeaddim, sizeof(Element), TileName::kRowsLarge>;
    if (large) return launch_gradients<Element, Large, false>(kName, args, stream);
  }
  using Small = TileOf<kHeaddim, sizeof(Element), TileName::kRowsSmall>;
  return launch_gradients<Element, Small, true>(kName, args, stream);
}

template <class Element, int kHeaddim>
Status GradientLaunches<Element, kHeaddim>::dbias(const DbiasArgs& args, void* stream) {
  static SharedMemoryGrant grant;
  using Tile = TileOf<kHeaddim, sizeof(Element), TileName::kRowsSmall>;
  const LaunchShape shape{.num_blocks = std::int64_t{args.shape[0]} * args.shape[1] *
                                        args.row_tiles * args.column_tiles,
                          .num_threads = Tile::tile.threads(),
                          .shared_bytes = shared_map(Tile::tile, sizeof(Element)).bytes,
                          .stream = stream};
  return launch_kernel("gradient of bias", dbias_kernel<Element, Tile>, args, shape, grant);
}

}  // namespace foveal::cuda::bwd
