#pragma once

#include <foveal/experimental.hpp>

#include "reference/inputs.hpp"

namespace foveal::reference {

/// The gradients that the problem asks for.
void backward(const Inputs& inputs, const OracleOptions& options, OracleResult& result);

}  // namespace foveal::reference
