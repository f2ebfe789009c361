// What the properties share: random cases that shrink, and two cases of which one is made from the
// other's data.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "property/property.hpp"
#include "support/built_case.hpp"
#include "support/case_grid.hpp"
#include "support/case_runner.hpp"
#include "support/comparison.hpp"
#include "support/operand_layout.hpp"

namespace foveal::test {

/// A random case, in a random kernel of its pass; `adjust` makes it one that the property speaks
/// of. What it shrinks to is adjusted again.
inline rc::Gen<Case> any_case(Pass pass, const std::function<void(Case&)>& adjust = {}) {
  const auto adjusted = [adjust](Case c) {
    if (adjust) adjust(c);
    return c;
  };
  const std::vector<std::string> kernels = usable_kernels_of(pass);
  const auto make = [=](std::uint64_t seed) {
    Case c = random_case(pass, seed);
    if (!kernels.empty()) c.kernel = kernels[seed % kernels.size()];  // else the planner's own
    return adjusted(c);
  };
  const auto shrink = [=](const Case& c) {
    std::vector<Case> simpler;
    for (const Case& candidate : simpler_cases(c)) {
      const Case good = adjusted(candidate);
      if (good != c && illegal_reason(good).empty()) simpler.push_back(good);
    }
    return rc::seq::fromContainer(simpler);
  };
  return rc::gen::shrink(
      rc::gen::map(rc::gen::noShrink(rc::gen::inRange<std::uint64_t>(0, 1u << 30)), make), shrink);
}

inline void require(const ::testing::AssertionResult& result) {
  if (!result) RC_FAIL(std::string(result.message()));
}

/// Runs a case; discards it where its kernel does not take it.
inline void run_or_discard(BuiltCase& built) {
  RC_PRE(kernel_takes(built.bench.problem,
                      {.kernel = built.c.kernel, .num_threads = built.c.num_threads}));
  built.bench.freeze();
  const Status status = built.run();
  if (!status) RC_FAIL(status.message());
  require(built.bench.check_memory(built.appended_elements()));
}

/// The sequences of `to` take the data of those of `from`: sequence b that of source(b). Heads of q
/// and keys are the same in number, or `to` has one KV head for each query head.
struct SequenceCopy {
  const BuiltCase& from;
  BuiltCase& to;
  std::function<std::int64_t(std::int64_t)> source = [](std::int64_t b) { return b; };

  void queries(std::string_view name) const {
    const Operand& operand = from.bench.at(name);
    to.fill_queries(name, [&](auto b, auto i, auto h, auto d) {
      return operand.get(from.q_index(source(b), i, h, d));
    });
  }

  void keys(std::string_view name) const {
    const Operand& operand = from.bench.at(name);
    const std::int64_t repeats = to.c.nheads_k / from.c.nheads_k;
    to.fill_keys(name, [&](auto b, auto j, auto h, auto d) {
      const Sequence& s = from.sequences[static_cast<std::size_t>(source(b))];
      const std::int64_t row = s.leftpad + j;
      if (row < s.cached) return operand.get(from.k_row_index(source(b), row, h / repeats, d));
      return from.bench.at(std::string(name) + "_new")
          .get({source(b), row - s.cached, h / repeats, d});
    });
  }

  void lse_like(std::string_view name) const {
    for (std::int64_t b = 0; b < to.c.batch(); ++b) {
      for (std::int64_t h = 0; h < to.c.nheads_q(); ++h) {
        for (std::int64_t i = 0; i < to.c.lens[static_cast<std::size_t>(b)].q; ++i) {
          to.bench.at(name).set(to.lse_index(b, h, i),
                                from.at(name, from.lse_index(source(b), h, i)));
        }
      }
    }
  }

  void score_terms() const {
    if (from.c.sinks) {
      to.bench.fill("sinks", [&](const Index& index) { return from.at("sinks", index); });
    }
    if (from.c.alibi != AlibiKind::kNone) {
      to.bench.fill("alibi_slopes", [&](const Index& index) {
        if (from.c.alibi == AlibiKind::kHeads) return from.at("alibi_slopes", index);
        return from.at("alibi_slopes", {source(index[0]), index[1]});
      });
    }
    if (from.c.bias == BiasKind::kNone) return;
    Operand& bias = to.bench.at("bias");
    for (std::int64_t b = 0; b < to.c.batch(); ++b) {
      const SeqLens& lens = to.c.lens[static_cast<std::size_t>(b)];
      for (std::int64_t h = 0; h < to.c.nheads_q(); ++h) {
        for (std::int64_t i = 0; i < lens.q; ++i) {
          for (std::int64_t j = 0; j < lens.k; ++j) {
            bias.set(to.bias_index(b, h, i, j),
                     from.at("bias", from.bias_index(source(b), h, i, j)));
          }
        }
      }
    }
  }

  /// Everything that a forward or backward reads; a backward's out and lse with it.
  void all() const {
    queries("q");
    keys("k");
    keys("v");
    score_terms();
    to.bench.tensors.dropout_seed = from.bench.tensors.dropout_seed;
    to.bench.tensors.dropout_offset = from.bench.tensors.dropout_offset;
    to.bench.tensors.dropout_seed_ptr = from.bench.tensors.dropout_seed_ptr;
    to.bench.tensors.dropout_offset_ptr = from.bench.tensors.dropout_offset_ptr;
    if (from.c.pass != Pass::kBackward) return;
    queries("dout");
    if (from.c.dlse) lse_like("dlse");
    queries("out");
    lse_like("lse");
  }
};

/// How close two results have to be.
enum class Match {
  kBits,     ///< The same bits.
  kRounded,  ///< The same but for the order of fp32 sums: a rounding or two of the result's dtype.
};

/// Result `name` of sequence `to_b` equals that of `from_b`, element by element.
struct SequenceComparison {
  const BuiltCase& from;
  const BuiltCase& to;
  Match match = Match::kBits;
  double factor = 1;  ///< to = factor * from
  double offset = 0;  ///< ... + offset

  void element(std::string_view name, double a, double b, double scale) const {
    const double expected = factor * a + offset;
    if (expected == b || (std::isnan(expected) && std::isnan(b))) return;
    const double slack = match == Match::kBits ? 0 : rounding_slack(name, expected, scale);
    if (!(std::abs(expected - b) <= slack)) {
      RC_FAIL(std::string(name) + ": " + std::to_string(expected) + " and " + std::to_string(b) +
              " (error " + std::to_string(std::abs(expected - b)) + ", at most " +
              std::to_string(slack) + ")\n  from: " + to_line(from.c) +
              "\n  to:   " + to_line(to.c));
    }
  }

  /// Two roundings of the result, and of the weights before they are multiplied: a kernel on matrix
  /// units rounds them to the dtype of its inputs, and elsewhere where the keys are divided
  /// otherwise.
  [[nodiscard]] double rounding_slack(std::string_view name, double expected, double scale) const {
    const double largest_term = std::max(1.0, scale);
    double slack = 2.02 * half_ulp(to.bench.at(name).spec.dtype, expected) + 1e-5 * largest_term;
    const bool has_weights = name != "lse" && to.c.pass != Pass::kMerge;
    if (to.c.is_16_bit() && has_weights) slack += 2.02 * half_ulp(to.c.dtype, largest_term);
    return slack;
  }

  [[nodiscard]] double largest(std::string_view name) const {
    double most = 0;
    for (const double value : from.bench.at(name).values()) {
      if (std::isfinite(value)) most = std::max(most, std::abs(factor * value));
    }
    return most;
  }

  void queries(std::string_view name, std::int64_t from_b, std::int64_t to_b) const {
    if (!to.bench.has(name)) return;
    const double scale = largest(name);
    for (std::int64_t i = 0; i < to.c.lens[static_cast<std::size_t>(to_b)].q; ++i) {
      for (std::int64_t h = 0; h < to.c.nheads_q(); ++h) {
        for (std::int64_t d = 0; d < to.c.headdim; ++d) {
          element(name, from.at(name, from.q_index(from_b, i, h, d)),
                  to.at(name, to.q_index(to_b, i, h, d)), scale);
        }
      }
    }
  }

  void keys(std::string_view name, std::int64_t from_b, std::int64_t to_b) const {
    if (!to.bench.has(name)) return;
    const double scale = largest(name);
    for (std::int64_t j = 0; j < to.c.lens[static_cast<std::size_t>(to_b)].k; ++j) {
      for (std::int64_t h = 0; h < to.c.nheads_k; ++h) {
        for (std::int64_t d = 0; d < to.c.headdim; ++d) {
          element(name, from.at(name, from.key_index(from_b, j, h, d)),
                  to.at(name, to.key_index(to_b, j, h, d)), scale);
        }
      }
    }
  }

  void lse(std::int64_t from_b, std::int64_t to_b) const {
    if (!to.bench.has("lse")) return;
    for (std::int64_t h = 0; h < to.c.nheads_q(); ++h) {
      for (std::int64_t i = 0; i < to.c.lens[static_cast<std::size_t>(to_b)].q; ++i) {
        const double a = from.at("lse", from.lse_index(from_b, h, i));
        element("lse", a, to.at("lse", to.lse_index(to_b, h, i)), std::isinf(a) ? 1 : std::abs(a));
      }
    }
  }

  /// out and lse, or dq, dk and dv.
  void sequence(std::int64_t from_b, std::int64_t to_b) const {
    if (to.c.pass == Pass::kForward) {
      queries("out", from_b, to_b);
      lse(from_b, to_b);
      return;
    }
    queries("dq", from_b, to_b);
    keys("dk", from_b, to_b);
    keys("dv", from_b, to_b);
  }

  void all() const {
    for (std::int64_t b = 0; b < to.c.batch(); ++b) sequence(b, b);
  }
};

/// A backward without `deterministic` may differ in the last bits of dq. A GPU's plan may divide
/// the keys otherwise where they are stored or masked otherwise, unless it is to be
/// batch-invariant.
inline Match match_of(const Case& c) {
  if (c.pass == Pass::kBackward) return c.deterministic ? Match::kBits : Match::kRounded;
  const bool may_divide = device_type_of(c.kernel) == DeviceType::kCuda && !c.batch_invariant;
  return may_divide ? Match::kRounded : Match::kBits;
}

/// Whether sequences share memory, so that one's data can't be another's.
inline bool shares_all(const Case& c) {
  return shares_memory(c.q_layout) || shares_memory(c.kv_layout);
}

/// Whether there is a mask decides where the queries of a rotary embedding stand.
inline void without_rotary(Case& c) {
  c.rotary = Rotary::kNone;
  c.rotary_dim = 0;
  c.rotary_fp32 = false;
}

inline void without_append(Case& c) {
  c.append = 0;
  without_rotary(c);
}

inline void without_bias(Case& c) {
  c.bias = BiasKind::kNone;
  c.bias_shape = "bhqk";
  c.dbias = false;
}

/// Plain, dense and as long as its first sequence.
inline void make_dense(Case& c) {
  without_append(c);
  if (c.lens.empty()) c.lens = {{3, 4}};
  for (SeqLens& lens : c.lens) lens = c.lens.front();
  c.q_form = QForm::kDense;
  c.k_form = KForm::kDense;
  c.slack_q = c.slack_k = c.leftpad = 0;
  c.cache_batch_idx = c.loose_max_seqlen = false;
  c.q_layout = c.kv_layout = c.out_layout = Layout::kBshd;
}

/// Every row sees every key, whatever part of the keys it is given.
inline void without_mask(Case& c) {
  c.causal = false;
  c.window_left = c.window_right = -1;
  c.alibi = AlibiKind::kNone;
}

}  // namespace foveal::test
