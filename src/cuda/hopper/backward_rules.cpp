#include "cuda/hopper/backward_rules.hpp"

#include <string>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {
namespace {

/// Rows and keys are counted in 32 bits on the device.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 29;

Status check_features(const BackwardLimits& limits, const AttentionProblem& problem,
                      const AttentionGeometry& geometry) {
  const auto refuse = [&](const char* what) {
    return Status::unsupported(concat(limits.kernel, " takes no ", what));
  };
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("q is fp32: ", limits.kernel, " takes fp16 and bf16"));
  }
  if (problem.dout.dtype != problem.q.dtype) {
    return Status::unsupported(concat("dout is ", dtype_name(problem.dout.dtype), ": ",
                                      limits.kernel, " takes q's ", dtype_name(problem.q.dtype)));
  }
  const std::int64_t columns = max_of(geometry.headdim, geometry.headdim_v);
  if (columns > limits.max_headdim || columns < limits.min_headdim) {
    const std::string range =
        limits.min_headdim > 1 ? concat(limits.min_headdim, " to ") : "at most ";
    return Status::unsupported(
        concat("headdim ", columns, ": ", limits.kernel, " takes ", range, limits.max_headdim));
  }
  if (problem.bias.present()) return refuse("bias");
  if (problem.alibi_slopes.present()) return refuse("alibi_slopes");
  if (problem.dropout_p > 0) return refuse("dropout");
  return Status::ok();
}

Status check_counts(const BackwardLimits& limits, const AttentionGeometry& geometry) {
  const std::int64_t rows = max_of(max_of(geometry.total_q, geometry.total_k), geometry.batch);
  if (rows > kMaxRows) {
    return Status::unsupported(
        concat(rows, " rows of q or k: ", limits.kernel, " takes at most ", kMaxRows));
  }
  const double heads = static_cast<double>(max_of(geometry.nheads_q, geometry.nheads_k));
  if (static_cast<double>(limits.tiles) * heads > static_cast<double>(limits.max_tiles)) {
    return Status::unsupported(
        concat(limits.kernel, " takes at most ", limits.max_tiles, " tiles over all heads"));
  }
  return Status::ok();
}

}  // namespace

Status check_backward(const BackwardLimits& limits, const AttentionProblem& problem,
                      const AttentionGeometry& geometry, const DeviceInfo& device) {
  FOVEAL_RETURN_IF_ERROR(check_features(limits, problem, geometry));
  if (limits.shared_bytes > device.smem_per_block_bytes) {
    return Status::unsupported(concat(limits.kernel, " needs ", limits.shared_bytes,
                                      " bytes of shared memory a block; there are ",
                                      device.smem_per_block_bytes));
  }
  FOVEAL_RETURN_IF_ERROR(check_strides(limits.kernel, "q", problem.q));
  FOVEAL_RETURN_IF_ERROR(check_strides(limits.kernel, "k", problem.k));
  FOVEAL_RETURN_IF_ERROR(check_strides(limits.kernel, "v", problem.v));
  FOVEAL_RETURN_IF_ERROR(check_strides(limits.kernel, "dout", problem.dout));
  return check_counts(limits, geometry);
}

std::int64_t list_bytes(bool packed, std::int64_t tiles) { return packed ? 8 * (1 + tiles) : 0; }

void plan_portable_backward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                            const DeviceInfo& device, planner::KernelConfig& config) {
  config.stand_in.push_back(kPortableBackward.configure(problem, geometry, device));
  const std::int64_t more = config.stand_in.front().workspace_bytes() - config.workspace_bytes();
  if (more > 0) config.workspace.push_back({"more for portable_bwd", more});
  config.notes.push_back(
      "operands that do not begin at a multiple of 16 bytes are left to portable_bwd");
}

}  // namespace foveal::cuda::hopper
