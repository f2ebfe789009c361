#include "plan/plan_cache.hpp"

#include <bit>
#include <cstdint>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace foveal::planner {
namespace {

/// A program that plans ever new shapes must not grow without bound; dropping all is rare and
/// costs one planning each.
constexpr std::size_t kMaxPlans = 4096;

/// Mixes 64-bit words, a multiplication and a rotation each.
class Hasher {
 public:
  void add(std::uint64_t word) { state_ = std::rotl((state_ ^ word) * 0x9E3779B97F4A7C15u, 29); }
  [[nodiscard]] std::size_t finish() const { return state_ ^ (state_ >> 32); }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3u;
};

struct HashKey {
  std::size_t operator()(const PlanKey& key) const {
    Hasher hasher;
    std::uint64_t position = 0;
    for (const OperandInfo& operand : operands()) {
      const TensorSpec& spec = key.problem.*operand.spec;
      ++position;
      if (!spec.present()) continue;
      hasher.add(position << 32 | static_cast<std::uint64_t>(spec.dtype));
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
        hasher.add(static_cast<std::uint64_t>(spec.shape[axis]));
        hasher.add(static_cast<std::uint64_t>(spec.strides[axis]));
      }
    }
    add_options(hasher, key.problem);
    hasher.add(static_cast<std::uint64_t>(key.device.type) << 32 |
               static_cast<std::uint32_t>(key.device.index));
    hasher.add(static_cast<std::uint64_t>(key.device.num_threads));
    if (!key.overrides.force_kernel.empty()) {
      hasher.add(std::hash<std::string>{}(key.overrides.force_kernel));
    }
    return hasher.finish();
  }

 private:
  static void add_options(Hasher& hasher, const AttentionProblem& problem) {
    const std::uint64_t flags =
        static_cast<std::uint64_t>(problem.pass) << 8 | std::uint64_t{problem.causal} |
        std::uint64_t{problem.rotary_interleaved} << 1 | std::uint64_t{problem.deterministic} << 2 |
        std::uint64_t{problem.batch_invariant} << 3 |
        std::uint64_t{problem.softmax_scale.has_value()} << 4;
    hasher.add(flags);
    hasher.add(static_cast<std::uint64_t>(problem.max_seqlen_q));
    hasher.add(static_cast<std::uint64_t>(problem.max_seqlen_k));
    hasher.add(static_cast<std::uint64_t>(problem.window_size_left));
    hasher.add(static_cast<std::uint64_t>(problem.window_size_right));
    hasher.add(std::bit_cast<std::uint32_t>(problem.softmax_scale.value_or(0.0f)));
    hasher.add(std::uint64_t{std::bit_cast<std::uint32_t>(problem.softcap)} << 32 |
               std::bit_cast<std::uint32_t>(problem.dropout_p));
  }
};

struct Cache {
  std::shared_mutex mutex;
  std::unordered_map<PlanKey, std::shared_ptr<const PlanState>, HashKey> plans;
};

/// Never destroyed: plans may be asked for while a program ends.
Cache& cache() {
  static auto* instance = new Cache;
  return *instance;
}

}  // namespace

std::shared_ptr<const PlanState> find_plan(const PlanKey& key) {
  const std::shared_lock lock(cache().mutex);
  const auto found = cache().plans.find(key);
  return found == cache().plans.end() ? nullptr : found->second;
}

void store_plan(PlanKey key, std::shared_ptr<const PlanState> state) {
  const std::unique_lock lock(cache().mutex);
  if (cache().plans.size() >= kMaxPlans) cache().plans.clear();
  cache().plans.insert_or_assign(std::move(key), std::move(state));
}

}  // namespace foveal::planner
