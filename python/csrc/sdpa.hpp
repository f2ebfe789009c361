// The operator behind foveal.scaled_dot_product_attention where no gradient is needed: few
// arguments, since a decode step is short.
#pragma once

#include <optional>

#include "operand.hpp"

namespace foveal::python {

/// PyTorch's arguments, all BHSD. Raises "foveal.NotTaken" for what is not attention over four
/// dimensions of one batch with the engine's types and equal head sizes: foveal._sdpa then
/// broadcasts, folds dimensions, or leaves the call to PyTorch.
Tensor sdpa(Tensor query, Tensor key, Tensor value, OptionalTensor attn_mask, bool is_causal,
            std::optional<double> scale, bool enable_gqa);

}  // namespace foveal::python
