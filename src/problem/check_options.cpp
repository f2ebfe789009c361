// Numbers of a problem that aren't shapes.
#include <cmath>
#include <cstdint>

#include "core/format.hpp"
#include "problem/validate.hpp"

namespace foveal::checks {
namespace {

Status check_window(const char* name, std::int64_t size) {
  if (size >= -1) return Status::ok();
  return Status::invalid_argument(concat(name, " ", size, ": at least -1, which is unbounded"));
}

Status check_max_seqlen(const char* name, std::int64_t max_seqlen, const char* tensor,
                        std::int32_t rank) {
  if (max_seqlen < 0) {
    return Status::invalid_argument(
        concat(name, " ", max_seqlen, ": at least 0, which takes the total"));
  }
  if (max_seqlen > 0 && rank != 3) {
    return Status::invalid_argument(
        concat(name, " ", max_seqlen, ": ", tensor, " is not packed, so its shape says it"));
  }
  return Status::ok();
}

}  // namespace

Status check_options(const AttentionProblem& problem) {
  if (problem.softmax_scale && !std::isfinite(*problem.softmax_scale)) {
    return Status::invalid_argument(
        concat("softmax_scale ", *problem.softmax_scale, ": it must be finite"));
  }
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    return Status::invalid_argument(
        concat("softcap ", problem.softcap, ": it must be finite and at least 0, which is off"));
  }
  if (!(problem.dropout_p >= 0 && problem.dropout_p <= 1)) {
    return Status::invalid_argument(
        concat("dropout_p ", problem.dropout_p, ": it must be between 0 and 1"));
  }
  FOVEAL_RETURN_IF_ERROR(check_window("window_size_left", problem.window_size_left));
  FOVEAL_RETURN_IF_ERROR(check_window("window_size_right", problem.window_size_right));
  FOVEAL_RETURN_IF_ERROR(
      check_max_seqlen("max_seqlen_q", problem.max_seqlen_q, "q", problem.q.rank));
  return check_max_seqlen("max_seqlen_k", problem.max_seqlen_k, "k", problem.k.rank);
}

}  // namespace foveal::checks
