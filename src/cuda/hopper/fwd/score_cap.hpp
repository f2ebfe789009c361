// softcap in the form in which the device applies it.
#pragma once

#include "cuda/hopper/fwd/args.hpp"

namespace foveal::cuda::hopper {

/// Of scores softcap * tanh(softmax_scale * q.k / softcap); softcap > 0.
[[nodiscard]] ScoreCap score_cap(float softmax_scale, float softcap);

}  // namespace foveal::cuda::hopper
