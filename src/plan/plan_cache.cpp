#include "plan/plan_cache.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

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

void hash_options(Hasher& hasher, const AttentionProblem& problem) {
  const std::uint64_t flags =
      static_cast<std::uint64_t>(problem.pass) << 8 | std::uint64_t{problem.causal} |
      std::uint64_t{problem.rotary_interleaved} << 1 | std::uint64_t{problem.deterministic} << 2 |
      std::uint64_t{problem.batch_invariant} << 3 |
      std::uint64_t{problem.softmax_scale.has_value()} << 4;
  hasher.add(flags);
  hasher.add(static_cast<std::uint64_t>(problem.max_seqlen_q) << 32 ^
             static_cast<std::uint64_t>(problem.max_seqlen_k));
  hasher.add(static_cast<std::uint64_t>(problem.window_size_left) << 32 ^
             static_cast<std::uint64_t>(problem.window_size_right));
  hasher.add(std::uint64_t{std::bit_cast<std::uint32_t>(problem.softcap)} << 32 ^
             std::bit_cast<std::uint32_t>(problem.dropout_p));
  hasher.add(std::bit_cast<std::uint32_t>(problem.softmax_scale.value_or(0.0f)));
}

/// Shapes and rows' strides tell problems apart well enough; equality decides.
std::size_t hash_key(const PlanKeyView& key) {
  Hasher hasher;
  std::uint64_t position = 0;
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec = key.problem.*operand.spec;
    ++position;
    if (!spec.present()) continue;
    hasher.add(position << 32 | static_cast<std::uint64_t>(spec.dtype));
    hasher.add(static_cast<std::uint64_t>(spec.shape[0]) << 32 ^
               static_cast<std::uint64_t>(spec.shape[1]));
    hasher.add(static_cast<std::uint64_t>(spec.shape[2]) << 32 ^
               static_cast<std::uint64_t>(spec.shape[3]));
    hasher.add(static_cast<std::uint64_t>(spec.strides[0]) << 32 ^
               static_cast<std::uint64_t>(spec.strides[1]));
  }
  hash_options(hasher, key.problem);
  hasher.add(static_cast<std::uint64_t>(key.device.type) << 48 ^
             static_cast<std::uint64_t>(key.device.index) << 32 ^
             static_cast<std::uint64_t>(key.device.num_threads));
  if (!key.overrides.force_kernel.empty()) {
    hasher.add(std::hash<std::string>{}(key.overrides.force_kernel));
  }
  if (!key.overrides.cpu_isa.empty()) hasher.add(std::hash<std::string>{}(key.overrides.cpu_isa));
  if (!key.overrides.max_smem.empty()) hasher.add(std::hash<std::string>{}(key.overrides.max_smem));
  return hasher.finish();
}

/// The same specs byte by byte: they have no padding.
static_assert(std::has_unique_object_representations_v<TensorSpec>);

// A new option must be compared below: adjust both.
static_assert(sizeof(AttentionProblem) ==
              sizeof(Pass) + 4 + 31 * sizeof(TensorSpec) + 2 * 8 + 8 + 2 * 4 + 2 * 8 + 8);

bool same_problem(const AttentionProblem& a, const AttentionProblem& b) {
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec_a = a.*operand.spec;
    const TensorSpec& spec_b = b.*operand.spec;
    if (!spec_a.present() && !spec_b.present()) continue;
    if (std::memcmp(&spec_a, &spec_b, sizeof(TensorSpec)) != 0) return false;
  }
  return a.pass == b.pass && a.max_seqlen_q == b.max_seqlen_q && a.max_seqlen_k == b.max_seqlen_k &&
         a.softmax_scale == b.softmax_scale && a.softcap == b.softcap &&
         a.dropout_p == b.dropout_p && a.window_size_left == b.window_size_left &&
         a.window_size_right == b.window_size_right && a.causal == b.causal &&
         a.rotary_interleaved == b.rotary_interleaved && a.deterministic == b.deterministic &&
         a.batch_invariant == b.batch_invariant;
}

/// A plan with the key it was made for.
struct Entry {
  Device device;
  Overrides overrides;
  std::shared_ptr<const PlanState> state;  ///< Has the problem.

  [[nodiscard]] bool is_for(const PlanKeyView& key) const {
    return device == key.device && overrides == key.overrides &&
           same_problem(state->problem, key.problem);
  }
};

struct Cache {
  std::shared_mutex mutex;
  std::unordered_multimap<std::size_t, Entry> plans;  ///< By hash_key().
};

/// Never destroyed: plans may be asked for while a program ends.
Cache& cache() {
  static auto* instance = new Cache;
  return *instance;
}

}  // namespace

std::shared_ptr<const PlanState> find_plan(const PlanKeyView& key) {
  const std::size_t hash = hash_key(key);
  const std::shared_lock lock(cache().mutex);
  const auto [first, last] = cache().plans.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    if (found->second.is_for(key)) return found->second.state;
  }
  return nullptr;
}

void store_plan(const PlanKeyView& key, std::shared_ptr<const PlanState> state) {
  const std::size_t hash = hash_key(key);
  const std::unique_lock lock(cache().mutex);
  if (cache().plans.size() >= kMaxPlans) cache().plans.clear();
  cache().plans.emplace(hash, Entry{key.device, key.overrides, std::move(state)});
}

}  // namespace foveal::planner
