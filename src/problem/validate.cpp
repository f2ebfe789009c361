#include "problem/validate.hpp"

#include <foveal/problem.hpp>

namespace foveal {

Status validate(const AttentionProblem& problem) {
  FOVEAL_RETURN_IF_ERROR(checks::check_operand_set(problem));
  FOVEAL_RETURN_IF_ERROR(checks::check_extents(problem));
  FOVEAL_RETURN_IF_ERROR(checks::check_dtypes(problem));
  FOVEAL_RETURN_IF_ERROR(checks::check_combinations(problem));
  FOVEAL_RETURN_IF_ERROR(checks::check_shapes(problem));
  return checks::check_options(problem);
}

}  // namespace foveal
