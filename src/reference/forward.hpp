#pragma once

#include <foveal/experimental.hpp>

#include "reference/inputs.hpp"

namespace foveal::reference {

/// out and lse. Options' rows are inside q.
void forward(const Inputs& inputs, const OracleOptions& options, OracleResult& result);

}  // namespace foveal::reference
