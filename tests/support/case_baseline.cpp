#include "support/case_baseline.hpp"

#include <cmath>
#include <limits>
#include <optional>

#include "algorithm/dropout.hpp"

namespace foveal::test {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// Turns the pairs of one head in place, each result rounded to the dtype.
void rotate_head(const BuiltCase& built, std::int64_t position, float* values) {
  const Case& c = built.c;
  if (c.rotary == Rotary::kNone) return;
  const std::int64_t pairs = c.rotary_dim / 2;
  const bool interleaved = c.rotary == Rotary::kInterleaved;
  for (std::int64_t p = 0; p < pairs; ++p) {
    float& first = values[interleaved ? 2 * p : p];
    float& second = values[interleaved ? 2 * p + 1 : p + pairs];
    const auto cosine = static_cast<float>(built.at("rotary_cos", {position, p}));
    const auto sine = static_cast<float>(built.at("rotary_sin", {position, p}));
    const float turned = round_to(c.dtype, first * cosine - second * sine);
    second = round_to(c.dtype, first * sine + second * cosine);
    first = turned;
  }
}

void gather_queries(const BuiltCase& built, std::int64_t b, BaselineInput& input) {
  const Case& c = built.c;
  const bool advances = c.causal || c.window_left >= 0 || c.window_right >= 0;
  const Operand& q = built.bench.at("q");
  input.q.resize(at(input.n_q * input.nheads_q * input.headdim));
  float* next = input.q.data();
  for (std::int64_t i = 0; i < input.n_q; ++i) {
    for (std::int64_t h = 0; h < input.nheads_q; ++h, next += input.headdim) {
      for (std::int64_t d = 0; d < input.headdim; ++d) {
        next[d] = static_cast<float>(q.get(built.q_index(b, i, h, d)));
      }
      rotate_head(built, built.sequences[at(b)].cached + (advances ? i : 0), next);
    }
  }
}

void gather_keys(const BuiltCase& built, std::int64_t b, std::string_view name,
                 std::vector<float>& rows) {
  const Case& c = built.c;
  const Sequence& s = built.sequences[at(b)];
  const Operand& cache = built.bench.at(name);
  const Operand* fresh = c.append > 0 ? &built.bench.at(std::string(name) + "_new") : nullptr;
  rows.resize(at(s.lens.k * c.nheads_k * c.headdim));
  float* next = rows.data();
  for (std::int64_t row = s.leftpad; row < s.leftpad + s.lens.k; ++row) {
    for (std::int64_t h = 0; h < c.nheads_k; ++h, next += c.headdim) {
      const bool appended = row >= s.cached;
      for (std::int64_t d = 0; d < c.headdim; ++d) {
        next[d] = static_cast<float>(appended ? fresh->get({b, row - s.cached, h, d})
                                              : cache.get(built.k_row_index(b, row, h, d)));
      }
      if (appended && name == "k") rotate_head(built, row, next);
    }
  }
}

/// `value(h, i, j)` for every pair.
template <class T, class Function>
void fill_pairs(const BaselineInput& input, std::vector<T>& values, Function&& value) {
  values.resize(at(input.nheads_q * input.n_q * input.n_k));
  for (std::int64_t h = 0; h < input.nheads_q; ++h) {
    for (std::int64_t i = 0; i < input.n_q; ++i) {
      for (std::int64_t j = 0; j < input.n_k; ++j) {
        values[at(input.pair(h, i, j))] = static_cast<T>(value(h, i, j));
      }
    }
  }
}

void gather_score_terms(const BuiltCase& built, std::int64_t b, BaselineInput& input) {
  const Case& c = built.c;
  const SeqLens& lens = built.sequences[at(b)].lens;
  input.visible.resize(at(input.n_q * input.n_k));
  for (std::int64_t i = 0; i < input.n_q; ++i) {
    for (std::int64_t j = 0; j < input.n_k; ++j) {
      input.visible[at(i * input.n_k + j)] = c.sees(lens, i, j) ? 1 : 0;
    }
  }
  if (c.bias != BiasKind::kNone) {
    const Operand& bias = built.bench.at("bias");
    fill_pairs(input, input.bias, [&](std::int64_t h, std::int64_t i, std::int64_t j) {
      const double value = bias.get(built.bias_index(b, h, i, j));
      if (c.bias != BiasKind::kMask) return value;
      return value != 0 ? 0.0 : -std::numeric_limits<double>::infinity();
    });
  }
  if (c.alibi != AlibiKind::kNone) {
    fill_pairs(input, input.alibi, [&](std::int64_t h, std::int64_t i, std::int64_t j) {
      const auto distance = static_cast<double>(i + lens.k - lens.q - j);
      return -built.slope(b, h) * std::abs(distance);
    });
  }
  if (c.sinks) {
    for (std::int64_t h = 0; h < input.nheads_q; ++h) {
      input.sinks.push_back(static_cast<float>(built.at("sinks", {h})));
    }
  }
  if (c.dropout > 0) {
    const AttentionTensors& t = built.bench.tensors;
    const algorithm::Dropout dropout = algorithm::make_dropout(
        c.dropout, t.dropout_seed_ptr != nullptr ? *t.dropout_seed_ptr : t.dropout_seed,
        t.dropout_offset_ptr != nullptr ? *t.dropout_offset_ptr : t.dropout_offset);
    input.keep_scale = c.dropout < 1 ? 1 / (1 - c.dropout) : 0;
    fill_pairs(input, input.keep, [&](std::int64_t h, std::int64_t i, std::int64_t j) {
      return algorithm::dropout_keeps(dropout, b * input.nheads_q + h, i, j) ? 1 : 0;
    });
  }
}

void gather_gradients(const BuiltCase& built, std::int64_t b, BaselineInput& input) {
  const Operand& dout = built.bench.at("dout");
  for (std::int64_t i = 0; i < input.n_q; ++i) {
    for (std::int64_t h = 0; h < input.nheads_q; ++h) {
      for (std::int64_t d = 0; d < input.headdim_v; ++d) {
        input.dout.push_back(static_cast<float>(dout.get(built.q_index(b, i, h, d))));
      }
    }
  }
  if (!built.c.dlse) return;
  const Operand& dlse = built.bench.at("dlse");
  for (std::int64_t h = 0; h < input.nheads_q; ++h) {
    for (std::int64_t i = 0; i < input.n_q; ++i) {
      input.dlse.push_back(static_cast<float>(dlse.get(built.lse_index(b, h, i))));
    }
  }
}

/// A result in an operand's own shape, row-major.
class Scatter {
 public:
  Scatter(const BuiltCase& built, std::string_view name, double untouched)
      : spec_(built.bench.at(name).spec),
        values_{std::string(name),
                std::vector<double>(static_cast<std::size_t>(spec_.numel()), untouched)} {}

  double& operator[](const Index& index) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < at(spec_.rank); ++axis) {
      offset = offset * spec_.shape[axis] + index[axis];
    }
    return values_.values[at(offset)];
  }
  NamedValues take() { return std::move(values_); }

 private:
  TensorSpec spec_;
  NamedValues values_;
};

void scatter_queries(const BuiltCase& built, std::int64_t b, const std::vector<float>& rows,
                     Scatter& result) {
  const Case& c = built.c;
  const float* next = rows.data();
  for (std::int64_t i = 0; i < built.sequences[at(b)].lens.q; ++i) {
    for (std::int64_t h = 0; h < c.nheads_q(); ++h) {
      for (std::int64_t d = 0; d < c.headdim; ++d) {
        result[built.q_index(b, i, h, d)] = static_cast<double>(*next++);
      }
    }
  }
}

void scatter_keys(const BuiltCase& built, std::int64_t b, const std::vector<float>& rows,
                  Scatter& result) {
  const Case& c = built.c;
  const float* next = rows.data();
  for (std::int64_t j = 0; j < built.sequences[at(b)].lens.k; ++j) {
    for (std::int64_t h = 0; h < c.nheads_k; ++h) {
      for (std::int64_t d = 0; d < c.headdim; ++d) {
        result[built.key_index(b, j, h, d)] = static_cast<double>(*next++);
      }
    }
  }
}

std::vector<NamedValues> forward_baseline(const BuiltCase& built) {
  Scatter out(built, "out", 0);
  std::optional<Scatter> lse;
  if (built.bench.has("lse")) {
    lse.emplace(built, "lse", -std::numeric_limits<double>::infinity());
  }
  for (std::int64_t b = 0; b < built.c.batch(); ++b) {
    const BaselineInput input = baseline_input(built, b);
    const BaselineForward forward = baseline_forward(input);
    scatter_queries(built, b, forward.out, out);
    for (std::int64_t h = 0; lse && h < input.nheads_q; ++h) {
      for (std::int64_t i = 0; i < input.n_q; ++i) {
        (*lse)[built.lse_index(b, h, i)] = static_cast<double>(forward.lse[at(h * input.n_q + i)]);
      }
    }
  }
  std::vector<NamedValues> results;
  results.push_back(out.take());
  if (lse) results.push_back(lse->take());
  return results;
}

/// dbias summed over the dimensions that bias is broadcast over: in fp32, then rounded.
NamedValues reduced_dbias(const BuiltCase& built, const std::vector<BaselineInput>& inputs,
                          const std::vector<BaselineBackward>& backwards) {
  Scatter dbias(built, "dbias", 0);
  for (std::int64_t b = 0; b < built.c.batch(); ++b) {
    const BaselineInput& input = inputs[at(b)];
    for (std::int64_t h = 0; h < input.nheads_q; ++h) {
      for (std::int64_t i = 0; i < input.n_q; ++i) {
        for (std::int64_t j = 0; j < input.n_k; ++j) {
          double& sum = dbias[built.bias_index(b, h, i, j)];
          sum = static_cast<double>(static_cast<float>(sum) +
                                    backwards[at(b)].dbias[at(input.pair(h, i, j))]);
        }
      }
    }
  }
  NamedValues values = dbias.take();
  for (double& value : values.values) {
    value = static_cast<double>(
        round_to(built.bench.at("dbias").spec.dtype, static_cast<float>(value)));
  }
  return values;
}

std::vector<NamedValues> backward_baseline(const BuiltCase& built) {
  std::vector<BaselineInput> inputs;
  std::vector<BaselineBackward> backwards;
  for (std::int64_t b = 0; b < built.c.batch(); ++b) {
    inputs.push_back(baseline_input(built, b));
    backwards.push_back(baseline_backward(inputs.back(), baseline_forward(inputs.back())));
  }
  std::vector<NamedValues> results;
  const auto add = [&](std::string_view name, auto scatter,
                       std::vector<float> BaselineBackward::*rows) {
    if (!built.bench.has(name)) return;
    Scatter result(built, name, 0);
    for (std::int64_t b = 0; b < built.c.batch(); ++b)
      scatter(built, b, backwards[at(b)].*rows, result);
    results.push_back(result.take());
  };
  add("dq", scatter_queries, &BaselineBackward::dq);
  add("dk", scatter_keys, &BaselineBackward::dk);
  add("dv", scatter_keys, &BaselineBackward::dv);
  add(
      "dsinks",
      [](const BuiltCase& of, std::int64_t, const std::vector<float>& sums, Scatter& result) {
        for (std::int64_t h = 0; h < of.c.nheads_q(); ++h) {
          result[{h}] += static_cast<double>(sums[at(h)]);
        }
      },
      &BaselineBackward::dsinks);
  if (built.bench.has("dbias")) results.push_back(reduced_dbias(built, inputs, backwards));
  return results;
}

}  // namespace

BaselineInput baseline_input(const BuiltCase& built, std::int64_t b) {
  const Case& c = built.c;
  const SeqLens& lens = built.sequences[at(b)].lens;
  BaselineInput input;
  input.dtype = c.dtype;
  input.n_q = lens.q;
  input.n_k = lens.k;
  input.nheads_q = c.nheads_q();
  input.nheads_k = c.nheads_k;
  input.headdim = input.headdim_v = c.headdim;
  input.scale =
      c.scale != 0 ? c.scale : static_cast<float>(1 / std::sqrt(static_cast<double>(c.headdim)));
  input.softcap = c.softcap;
  gather_queries(built, b, input);
  gather_keys(built, b, "k", input.k);
  gather_keys(built, b, "v", input.v);
  gather_score_terms(built, b, input);
  if (c.pass == Pass::kBackward) gather_gradients(built, b, input);
  return input;
}

std::vector<NamedValues> baseline_of(const BuiltCase& built) {
  return built.c.pass == Pass::kBackward ? backward_baseline(built) : forward_baseline(built);
}

}  // namespace foveal::test
