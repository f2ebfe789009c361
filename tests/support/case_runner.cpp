#include "support/case_runner.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <foveal/experimental.hpp>

#include "support/case_baseline.hpp"
#include "support/comparison.hpp"
#include "support/test_kernels.hpp"

namespace foveal::test {
namespace {

using Kind = CaseOutcome::Kind;

const std::vector<double>& values_of(const OracleResult& result, std::string_view name) {
  if (name == "out") return result.out;
  if (name == "lse") return result.lse;
  if (name == "dq") return result.dq;
  if (name == "dk") return result.dk;
  if (name == "dv") return result.dv;
  if (name == "dbias") return result.dbias;
  if (name == "dsinks") return result.dsinks;
  if (name == "k") return result.k_cache;
  if (name == "v") return result.v_cache;
  return result.q_rotated;
}

const std::vector<double>& baseline_values(const std::vector<NamedValues>& baseline,
                                           std::string_view name) {
  static const std::vector<double> none;
  for (const NamedValues& values : baseline) {
    if (values.name == name) return values.values;
  }
  return none;
}

/// What a run is held against.
struct References {
  OracleResult oracle;             ///< From q, k, v alone.
  OracleResult given;              ///< Backward: from the rounded out and lse that the kernel gets.
  std::vector<NamedValues> plain;  ///< The same-dtype baseline; forward and backward.
};

Result<References> make_references(const BuiltCase& built) {
  const auto run = [&](bool use_given) {
    return oracle(built.bench.problem, built.bench.tensors,
                  {.rows = {}, .use_given_out_and_lse = use_given, .num_threads = 1});
  };
  References references;
  Result<OracleResult> result = run(false);
  if (!result) return result.status();
  references.oracle = *std::move(result);
  if (built.c.pass == Pass::kBackward) {
    Result<OracleResult> given = run(true);
    if (!given) return given.status();
    references.given = *std::move(given);
  }
  if (built.c.pass == Pass::kForward || built.c.pass == Pass::kBackward) {
    references.plain = baseline_of(built);
  }
  return references;
}

/// Elements other than 0 from which on the largest errors of two runs can be compared.
constexpr std::size_t kManyNumbers = 1024;

/// How far scores of standard normal input spread, against those of the default scale.
double score_spread(const Case& c) {
  return std::max(
      1.0, std::abs(static_cast<double>(c.scale)) * std::sqrt(static_cast<double>(c.headdim)));
}

/// Rotated queries and keys are rounded to the dtype before they are multiplied: a score of
/// standard normal input is then off by this many roundings. 0 where scores are fp32's.
double score_roundings(const Case& c) {
  return c.rotary == Rotary::kNone || !c.is_16_bit() ? 0 : score_spread(c);
}

double lse_limit(const Case& c) {
  if (score_roundings(c) == 0) return kLseLimit * score_spread(c);
  return (c.dtype == DType::kFloat16 ? 0x1p-9 : 0x1p-6) * score_roundings(c);
}

/// Gradients that are summed over whole dimensions.
bool is_sum(const Case& c, std::string_view name) {
  return name == "dsinks" || (name == "dbias" && c.bias_shape.find('1') != std::string::npos);
}

/// A sum over n scores carries the roundings of n of them.
double sum_floor(const Case& c, const Operand& operand, double floor) {
  if (!is_sum(c, operand.info->name) || operand.spec.numel() == 0) return floor;
  double scores = 0;
  for (const SeqLens& lens : c.lens) {
    scores += static_cast<double>(lens.q * c.nheads_q()) * static_cast<double>(lens.k);
  }
  return floor * std::sqrt(std::max(1.0, scores / static_cast<double>(operand.spec.numel())));
}

/// Kernels of 16-bit matrix units round the weights to the inputs' type, and where all keys are
/// equal the plain path may round nothing: what one rounding costs in an fp32 result. CPUs multiply
/// fp16 in fp32.
double weight_rounding(const Case& c, const Operand& operand) {
  if (!c.is_16_bit() || operand.spec.dtype != DType::kFloat32) return 0;
  if (c.dtype == DType::kFloat16 && device_type_of(c.kernel) == DeviceType::kCpu) return 0;
  return c.dtype == DType::kFloat16 ? 0x1p-12 : 0x1p-9;
}

::testing::AssertionResult check_output(const Operand& operand, const Case& c,
                                        const References& references) {
  const std::string_view name = operand.info->name;
  AccuracyLimits limits = accuracy_limits(c.dtype);
  limits.floor = std::max(sum_floor(c, operand, limits.floor), weight_rounding(c, operand));
  // The contract's limit is for the default scale; gradients, and the roundings of what they are
  // products of, grow with the scores.
  if (c.is_16_bit()) limits.absolute *= score_spread(c);
  const std::vector<double>& expected = values_of(references.oracle, name);
  if (c.pass == Pass::kMerge || c.pass == Pass::kAppend) {
    return compare_rounded(operand, expected, 1e-5);
  }
  if (name == "lse") return compare_lse(operand, expected, lse_limit(c));
  const std::vector<double>& plain = baseline_values(references.plain, name);
  if (plain.size() != expected.size()) {
    return ::testing::AssertionFailure() << "the baseline has no " << name;
  }
  const double plain_error = largest_error(expected, plain);
  // A gradient sums as many roundings as there are rows or keys, in the plain path too.
  if (c.pass == Pass::kBackward && c.is_16_bit()) {
    limits.absolute = std::max(limits.absolute, limits.baseline_factor * plain_error);
  }
  // A backward starts from a rounded out. In few numbers that rounding may happen to hurt the
  // kernel and spare the plain path; what the kernel itself does is seen from the inputs that it
  // gets.
  const std::vector<double>& exact =
      c.pass == Pass::kBackward ? values_of(references.given, name) : expected;
  if (const auto own = compare_with_plain(operand, exact, plain_error, limits); !own) return own;
  const auto zeros = std::count(expected.begin(), expected.end(), 0.0);
  if (expected.size() - static_cast<std::size_t>(zeros) >= kManyNumbers) {
    const auto all = compare_with_plain(operand, expected, plain_error, limits);
    if (!all) return all;
  }
  if (const auto each = compare_absolute(operand, exact, limits); !each) return each;
  // One number that many rows cancel in has no norm of its own to measure by.
  if (is_sum(c, name)) return ::testing::AssertionSuccess();
  // fp32's dq and dk are the scale times what is left of dp less delta, sums over the headdim that
  // may cancel: their roundings stay, and grow as scores do. The floor is one for the default
  // scale.
  if (!c.is_16_bit() && (name == "dq" || name == "dk")) limits.floor *= score_spread(c);
  return compare_norm(operand, exact, limits);
}

::testing::AssertionResult check_outputs(const BuiltCase& built, const References& references) {
  for (const Operand& operand : built.bench.all()) {
    if (!is_output_of(built.c.pass, operand.info->name)) continue;
    if (const auto result = check_output(operand, built.c, references); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

/// The appended slots of k and v; everything else of the caches is check_memory()'s.
::testing::AssertionResult check_appended(const BuiltCase& built, const OracleResult& expected) {
  for (const std::string_view name : {"k", "v"}) {
    const Operand& operand = built.bench.at(name);
    const std::vector<double>& values = values_of(expected, name);
    for (std::int64_t b = 0; b < built.c.batch(); ++b) {
      const Sequence& s = built.sequences[static_cast<std::size_t>(b)];
      for (std::int64_t row = s.cached; row < s.cached + built.c.append; ++row) {
        for (std::int64_t h = 0; h < built.c.nheads_k; ++h) {
          for (std::int64_t d = 0; d < built.c.headdim; ++d) {
            const Index index = built.k_row_index(b, row, h, d);
            std::int64_t flat = 0;
            for (std::size_t axis = 0; axis < 4; ++axis) {
              flat = flat * operand.spec.shape[axis] + index[axis];
            }
            const double wanted = values[static_cast<std::size_t>(flat)];
            const double slack = name == "v" || built.c.rotary == Rotary::kNone
                                     ? 0
                                     : 1.01 * half_ulp(built.c.dtype, wanted) + 1e-6;
            if (!(std::abs(operand.get(index) - wanted) <= slack)) {
              return ::testing::AssertionFailure()
                     << name << ": token " << row << " of sequence " << b << ", head " << h
                     << ", column " << d << ": expected " << wanted << ", got "
                     << operand.get(index);
            }
          }
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/// What docs/numerics.md promises to be the same from run to run: all of it, or all but dq, dbias,
/// dsinks.
bool repeats(const Case& c, std::string_view name) {
  return c.deterministic || (name != "dq" && name != "dbias" && name != "dsinks");
}

::testing::AssertionResult check_repeats(BuiltCase& built) {
  std::vector<std::pair<std::string_view, std::vector<std::byte>>> first;
  for (const Operand& operand : built.bench.all()) {
    first.emplace_back(operand.info->name,
                       std::vector<std::byte>(operand.memory.data(),
                                              operand.memory.data() + operand.memory.size()));
  }
  built.bench.restore();
  if (const Status status = built.run(); !status) {
    return ::testing::AssertionFailure() << "the second run: " << status.message();
  }
  for (const auto& [name, bytes] : first) {
    const Operand& operand = built.bench.at(name);
    if (!repeats(built.c, name)) continue;
    const auto differing = std::mismatch(bytes.begin(), bytes.end(), operand.memory.data()).first;
    if (differing != bytes.end()) {
      const std::int64_t byte = differing - bytes.begin();
      return ::testing::AssertionFailure()
             << "two runs: " << name << " differs "
             << byte / dtype_bytes(operand.spec.dtype) - operand.origin
             << " elements from its first";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

std::string with_replay(const Case& c, const std::string& message) {
  return message + "\n  replay: FOVEAL_REPLAY='" + to_line(c) + "' foveal_kernel_tests";
}

CaseOutcome run_case(const Case& c) {
  if (const std::string reason = illegal_reason(c); !reason.empty()) {
    return {Kind::kFailed, with_replay(c, reason)};
  }
  BuiltCase built(c);
  return run_built(built);
}

CaseOutcome run_built(BuiltCase& built) {
  const Case& c = built.c;
  const auto failed = [&](const std::string& message) {
    return CaseOutcome{Kind::kFailed, with_replay(c, message)};
  };
  built.bench.freeze();
  if (const Status valid = validate(built.bench.problem); !valid) {
    return failed("validate: " + valid.message());
  }
  if (const Status valid = validate(built.bench.problem, built.bench.tensors); !valid) {
    return failed("validate: " + valid.message());
  }
  const Result<References> references = make_references(built);
  if (!references) return failed("oracle: " + references.status().message());

  const Status status = built.run();
  if (status.code() == StatusCode::kUnsupported) {
    return {Kind::kUnsupported, status.message()};
  }
  if (!status) return failed(status.message());
  if (const auto memory = built.bench.check_memory(built.appended_elements()); !memory) {
    return failed(memory.message());
  }
  if (const auto outputs = check_outputs(built, *references); !outputs) {
    return failed(outputs.message());
  }
  if (c.append > 0) {
    if (const auto cache = check_appended(built, references->oracle); !cache)
      return failed(cache.message());
  }
  if (const auto again = check_repeats(built); !again) return failed(again.message());
  return {};
}

::testing::AssertionResult case_passes(const Case& c) {
  const CaseOutcome outcome = run_case(c);
  if (outcome.kind == Kind::kPassed) return ::testing::AssertionSuccess();
  if (outcome.kind == Kind::kFailed) return ::testing::AssertionFailure() << outcome.message;
  return ::testing::AssertionFailure() << with_replay(c, "unsupported: " + outcome.message);
}

}  // namespace foveal::test
