// The launches of one head size, which instances/ hold, and of the passes over rows.
#pragma once

#include <foveal/status.hpp>

#include "cuda/portable/bwd/args.hpp"

namespace foveal::cuda::bwd {

/// dk, dv (and dq's sums), dq by itself, or dbias. `large` chooses the kernel of the large tiles.
template <class Element, int kHeaddim>
struct GradientLaunches {
  static Status keys(const BackwardArgs& args, bool large, void* stream);
  static Status rows(const BackwardArgs& args, bool large, void* stream);
  static Status dbias(const DbiasArgs& args, void* stream);
};

}  // namespace foveal::cuda::bwd
