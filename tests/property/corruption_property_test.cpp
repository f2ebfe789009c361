// validate() on problems of which one thing is wrong: it never crashes, and it either accepts (and
// then the kernel stays within its memory) or says what is wrong with which operand.
#include <limits>

#include "property/property_case.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

constexpr std::string_view kOptions[] = {
    "softmax_scale", "softcap",      "dropout_p", "window_size_left", "window_size_right",
    "max_seqlen_q",  "max_seqlen_k", "headdim",   "nheads_q",         "pass"};

bool names_something(const std::string& message) {
  for (const OperandInfo& operand : operands()) {
    if (message.find(operand.name) != std::string::npos) return true;
  }
  return std::any_of(std::begin(kOptions), std::end(kOptions), [&](std::string_view option) {
    return message.find(option) != std::string::npos;
  });
}

void require_clear(const Status& status, const std::string& change) {
  if (status) return;
  const bool code =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
  if (!code || !names_something(status.message())) {
    RC_FAIL("after " + change + ": " + status_code_name(status.code()) + ": " + status.message());
  }
}

std::int64_t odd_number(Random& random) {
  constexpr std::int64_t kNumbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       7,
                                       16,
                                       63,
                                       64,
                                       65,
                                       512,
                                       513,
                                       -1,
                                       -2,
                                       -7,
                                       1 << 20,
                                       std::numeric_limits<std::int32_t>::max(),
                                       std::numeric_limits<std::int32_t>::min(),
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
  return kNumbers[random.integer(0, static_cast<std::int64_t>(std::size(kNumbers)) - 1)];
}

float odd_float(Random& random) {
  const float numbers[] = {0,
                           1,
                           -1,
                           2,
                           0.5f,
                           1e30f,
                           -1e-30f,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  return numbers[random.integer(0, 8)];
}

/// Changes one field of one operand's spec, or adds or takes away the operand.
std::string corrupt_spec(AttentionProblem& problem, Random& random) {
  const auto all = operands();
  const OperandInfo& operand =
      all[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(all.size()) - 1))];
  TensorSpec& spec = problem.*operand.spec;
  const auto axis = static_cast<std::size_t>(random.integer(0, 3));
  switch (random.integer(0, 5)) {
    case 0: spec = {}; break;
    case 1: spec.dtype = static_cast<DType>(random.integer(0, 6)); break;
    case 2: spec.rank = static_cast<std::int32_t>(random.integer(-1, 6)); break;
    case 3: spec.strides[axis] = odd_number(random); break;
    case 4: spec = TensorSpec::contiguous(DType::kFloat32, {1, 4, 2, 64}); break;
    default: spec.shape[axis] = odd_number(random); break;
  }
  return std::string(operand.name) + " became " +
         (spec.rank >= 0 && spec.rank <= 4 ? spec.to_string() : "of odd rank");
}

std::string corrupt_option(AttentionProblem& problem, Random& random) {
  switch (random.integer(0, 8)) {
    case 0: problem.pass = static_cast<Pass>(random.integer(-1, 5)); return "another pass";
    case 1: problem.max_seqlen_q = odd_number(random); return "max_seqlen_q";
    case 2: problem.max_seqlen_k = odd_number(random); return "max_seqlen_k";
    case 3: problem.softmax_scale = odd_float(random); return "softmax_scale";
    case 4: problem.softcap = odd_float(random); return "softcap";
    case 5: problem.dropout_p = odd_float(random); return "dropout_p";
    case 6: problem.window_size_left = odd_number(random); return "window_size_left";
    case 7: problem.window_size_right = odd_number(random); return "window_size_right";
    default: problem.causal = !problem.causal; return "causal";
  }
}

Pass any_pass() {
  return *rc::gen::element(Pass::kForward, Pass::kBackward, Pass::kAppend, Pass::kMerge);
}

FOVEAL_PROPERTY(Corruption, OfAProblemIsAcceptedOrNamed) {
  const Case c = *any_case(any_pass());
  Random random(*rc::gen::arbitrary<std::uint64_t>());
  const BuiltCase built(c);
  for (int attempt = 0; attempt < 50; ++attempt) {
    AttentionProblem problem = built.bench.problem;
    const std::string change =
        random.chance(0.7) ? corrupt_spec(problem, random) : corrupt_option(problem, random);
    const Status status = validate(problem);
    require_clear(status, change);
    if (!status) continue;
    // What is accepted can be planned and explained; only a kernel's own limits may refuse it.
    const Result<Plan> planned = plan(problem, Device::cpu(1));
    if (!planned && planned.status().code() != StatusCode::kUnsupported) {
      RC_FAIL("after " + change + ": " + planned.status().message());
    }
    if (planned) RC_ASSERT(!to_string(problem).empty() && !planned->kernel().empty());
  }
}

/// Changes one number of a length, a page table or a cache index, or a pointer.
std::string corrupt_data(BuiltCase& built, Random& random) {
  std::vector<Operand*> integers;
  for (const Operand& operand : built.bench.all()) {
    if (operand.spec.dtype == DType::kInt32 && operand.spec.numel() > 0) {
      integers.push_back(&built.bench.at(operand.info->name));
    }
  }
  if (integers.empty() || random.chance(0.2)) {
    const auto all = operands();
    const OperandInfo& operand =
        all[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(all.size()) - 1))];
    if (operand.input != nullptr) built.bench.tensors.*operand.input = nullptr;
    if (operand.output != nullptr) built.bench.tensors.*operand.output = nullptr;
    return std::string(operand.name) + " is null";
  }
  Operand& operand = *integers[static_cast<std::size_t>(
      random.integer(0, static_cast<std::int64_t>(integers.size()) - 1))];
  Index index{};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(operand.spec.rank); ++axis) {
    index[axis] = random.integer(0, operand.spec.shape[axis] - 1);
  }
  const auto value = static_cast<std::int32_t>(odd_number(random));
  operand.set(index, value);
  return std::string(operand.info->name) + " got " + std::to_string(value);
}

FOVEAL_PROPERTY(Corruption, OfDataIsRefusedOrStaysInMemory) {
  const Case c = *any_case(any_pass());
  Random random(*rc::gen::arbitrary<std::uint64_t>());
  for (int attempt = 0; attempt < 4; ++attempt) {
    BuiltCase built(c);
    RC_PRE(kernel_takes(built.bench.problem, {.kernel = c.kernel}));
    const std::string change = corrupt_data(built, random);
    built.bench.freeze();
    const Status status = built.run();
    require_clear(status, change);
    for (const Operand& operand : built.bench.all()) {
      RC_ASSERT(operand.memory.guards_intact());
      if (status) continue;
      const bool untouched =
          std::equal(operand.frozen.begin(), operand.frozen.end(), operand.memory.data());
      if (!untouched)
        RC_FAIL("after " + change + ": refused, but " + operand.info->name + " changed");
    }
  }
}

}  // namespace
}  // namespace foveal::test
