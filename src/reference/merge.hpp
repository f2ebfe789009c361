#pragma once

#include <foveal/experimental.hpp>

#include "reference/inputs.hpp"

namespace foveal::reference {

/// out and lse over the union of two disjoint sets of keys.
void merge(const Inputs& inputs, OracleResult& result);

}  // namespace foveal::reference
