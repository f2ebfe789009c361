// The checks of a problem, by subject. Each clause has one message, and each message a test.
#pragma once

#include <foveal/problem.hpp>

#include "problem/geometry.hpp"

namespace foveal::checks {

/// Which operands a pass needs and takes, and which of them come in pairs.
Status check_operand_set(const AttentionProblem& problem);
/// Element types against each other.
Status check_dtypes(const AttentionProblem& problem);
/// Ranks, extents and sizes of each operand by itself.
Status check_extents(const AttentionProblem& problem);
/// Shapes against each other.
Status check_shapes(const AttentionProblem& problem);
/// Scale, softcap, dropout, windows, maximum lengths.
Status check_options(const AttentionProblem& problem);
/// Combinations that the contract leaves out.
Status check_combinations(const AttentionProblem& problem);

/// Operands with elements have data, and int32 arrays their alignment. Reads no data.
Status check_pointers(const AttentionProblem& problem, const AttentionTensors& tensors);
/// Every operand lies at a multiple of its element's size, as a GPU's loads need.
Status check_element_alignment(const AttentionProblem& problem, const AttentionTensors& tensors);

}  // namespace foveal::checks
