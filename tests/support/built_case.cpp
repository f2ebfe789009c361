#include "support/built_case.hpp"

#include <algorithm>

#include <foveal/experimental.hpp>

#include "support/operand_layout.hpp"

namespace foveal::test {
namespace {

std::int64_t longest(const Case& c, std::int64_t SeqLens::*length) {
  std::int64_t most = 0;
  for (const SeqLens& lens : c.lens) most = std::max(most, lens.*length);
  return most;
}

std::int64_t leftpad_of(const Case& c, std::int64_t b) {
  return c.leftpad == 0 ? 0 : (c.leftpad + 3 * b) % (c.leftpad + 1);
}

bool all_equal(const Case& c, std::int64_t SeqLens::*length) {
  return std::all_of(c.lens.begin(), c.lens.end(),
                     [&](const SeqLens& lens) { return lens.*length == c.lens.front().*length; });
}

std::string illegal_keys(const Case& c) {
  if (c.k_form == KForm::kDense && c.leftpad != 0) return "left padding of dense keys";
  if (c.k_form == KForm::kDense && !all_equal(c, &SeqLens::k)) {
    return "dense keys of different lengths";
  }
  const bool cache = c.k_form == KForm::kCache || c.k_form == KForm::kPaged;
  if (c.append > 0 && !cache) return "tokens to append without a cache";
  if (c.append > 0 && shares_memory(c.kv_layout)) return "an append to an expanded cache";
  if (c.append > 0 && c.pass != Pass::kForward && c.pass != Pass::kAppend) {
    return "tokens to append in this pass";
  }
  if (c.pass == Pass::kAppend && c.append == 0) return "an append of no tokens";
  if (c.cache_batch_idx && c.k_form != KForm::kCache) return "cache_batch_idx without a cache";
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    if (c.lens[static_cast<std::size_t>(b)].k + leftpad_of(c, b) < c.append) {
      return "fewer keys than appended tokens";
    }
  }
  if (c.rotary != Rotary::kNone &&
      (c.append == 0 || c.rotary_dim < 2 || c.rotary_dim % 2 != 0 || c.rotary_dim > c.headdim)) {
    return "a rotary dimension that does not fit";
  }
  return c.page_size < 1 ? "a page without slots" : "";
}

std::string illegal_backward(const Case& c) {
  if (c.pass != Pass::kBackward) {
    return c.dbias || c.dsinks || c.dlse ? "gradients asked of another pass" : "";
  }
  if (c.k_form == KForm::kPaged || c.cache_batch_idx) return "a backward through a cache";
  if (c.dbias && (c.bias == BiasKind::kNone || c.bias == BiasKind::kMask)) {
    return "dbias without a bias of numbers";
  }
  if (c.dsinks && !c.sinks) return "dsinks without sinks";
  if (!c.dq && !c.dk && !c.dv && !c.dbias && !c.dsinks) return "a backward without gradients";
  return "";
}

std::string illegal_bias(const Case& c) {
  if (c.bias == BiasKind::kNone) return "";
  if (c.packed_q() || c.packed_k()) return "a bias with packed tensors";
  constexpr std::string_view kLetters = "bhqk";
  if (c.bias_shape.size() != kLetters.size()) return "a bias shape of other than four letters";
  for (std::size_t axis = 0; axis < kLetters.size(); ++axis) {
    if (c.bias_shape[axis] != kLetters[axis] && c.bias_shape[axis] != '1') {
      return "a letter in bias_shape";
    }
  }
  return "";
}

}  // namespace

std::string illegal_reason(const Case& c) {
  if (c.headdim < 1 || c.headdim > 512 || c.nheads_k < 1 || c.group < 1) return "heads";
  for (const SeqLens& lens : c.lens) {
    if (lens.q < 0 || lens.k < 0) return "a negative length";
  }
  if (c.q_form == QForm::kDense && !all_equal(c, &SeqLens::q)) {
    return "dense queries of different lengths";
  }
  if (shares_memory(c.out_layout)) return "an expanded output";
  if (c.pass == Pass::kMerge) {
    const bool used = c.q_form == QForm::kUsed || c.q_form == QForm::kPackedUsed;
    return used ? "a merge of rows that are not in use" : "";
  }
  for (const std::string& reason : {illegal_keys(c), illegal_backward(c), illegal_bias(c)}) {
    if (!reason.empty()) return reason;
  }
  return "";
}

std::int64_t dense_rows_q(const Case& c) {
  return longest(c, &SeqLens::q) + (c.q_form == QForm::kUsed ? c.slack_q : 0);
}

std::int64_t dense_rows_k(const Case& c) {
  if (c.k_form == KForm::kDense) return longest(c, &SeqLens::k);
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    rows = std::max(rows, c.lens[static_cast<std::size_t>(b)].k + leftpad_of(c, b));
  }
  if (c.k_form != KForm::kPaged) return rows + c.slack_k;
  const std::int64_t pages = (rows + c.page_size - 1) / c.page_size;
  const std::int64_t unused_columns = c.slack_k == 0 ? 0 : 1 + c.slack_k / c.page_size;
  return std::max<std::int64_t>(pages + unused_columns, 1) * c.page_size;
}

namespace {

/// Sequences in order, each behind the one before where the tensors are packed.
std::vector<Sequence> make_sequences(const Case& c) {
  std::vector<Sequence> sequences;
  std::int64_t q_begin = 0;
  std::int64_t k_begin = 0;
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    Sequence s;
    s.lens = c.lens[static_cast<std::size_t>(b)];
    s.leftpad = leftpad_of(c, b);
    const std::int64_t rows = s.lens.k + s.leftpad;
    s.cached = rows - c.append;
    s.cache_row = b;
    s.capacity_q = dense_rows_q(c);
    s.capacity_k = dense_rows_k(c);
    if (c.packed_q()) {
      const std::int64_t unused =
          c.q_form == QForm::kPackedUsed ? (c.slack_q + 2 * b) % (c.slack_q + 1) : 0;
      s.q_begin = q_begin;
      s.capacity_q = s.lens.q + unused;
      q_begin += s.capacity_q;
    }
    if (c.packed_k()) {
      const std::int64_t unused =
          c.k_form == KForm::kPackedUsed ? (c.slack_k + 2 * b) % (c.slack_k + 1) : 0;
      s.k_begin = k_begin;
      s.capacity_k = rows + unused;
      k_begin += s.capacity_k;
    }
    sequences.push_back(s);
  }
  return sequences;
}

}  // namespace

BuiltCase::BuiltCase(const Case& the_case) : c(the_case), sequences(make_sequences(the_case)) {
  if (const std::string reason = illegal_reason(c); !reason.empty()) {
    ADD_FAILURE() << to_line(c) << "\nis no case: " << reason;
    std::abort();
  }
  build_operands(*this);
  if (c.pass == Pass::kBackward) compute_forward();
  bench.freeze();
}

Index BuiltCase::q_index(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
  if (c.packed_q()) return {sequences[static_cast<std::size_t>(b)].q_begin + i, h, d, 0};
  return {b, i, h, d};
}

Index BuiltCase::k_row_index(std::int64_t b, std::int64_t row, std::int64_t h,
                             std::int64_t d) const {
  const Sequence& s = sequences[static_cast<std::size_t>(b)];
  if (c.packed_k()) return {s.k_begin + row, h, d, 0};
  if (c.k_form == KForm::kPaged) {
    return {s.pages[static_cast<std::size_t>(row / c.page_size)], row % c.page_size, h, d};
  }
  return {s.cache_row, row, h, d};
}

Index BuiltCase::key_index(std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t d) const {
  return k_row_index(b, sequences[static_cast<std::size_t>(b)].leftpad + j, h, d);
}

Index BuiltCase::lse_index(std::int64_t b, std::int64_t h, std::int64_t i) const {
  if (c.packed_q()) return {h, sequences[static_cast<std::size_t>(b)].q_begin + i, 0, 0};
  return {b, h, i, 0};
}

Index BuiltCase::bias_index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  Index index{b, h, i, j};
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (c.bias_shape[axis] == '1') index[axis] = 0;
  }
  return index;
}

double BuiltCase::slope(std::int64_t b, std::int64_t h) const {
  return bench.at("alibi_slopes").get(c.alibi == AlibiKind::kHeads ? Index{h} : Index{b, h});
}

void BuiltCase::fill_queries(std::string_view name, const RowValue& value) {
  Operand& operand = bench.at(name);
  const std::int64_t dim = operand.spec.shape[static_cast<std::size_t>(operand.spec.rank - 1)];
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t i = 0; i < sequences[static_cast<std::size_t>(b)].lens.q; ++i) {
      for (std::int64_t h = 0; h < c.nheads_q(); ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          operand.set(q_index(b, i, h, d), value(b, i, h, d));
        }
      }
    }
  }
}

void BuiltCase::fill_keys(std::string_view name, const RowValue& value) {
  Operand& operand = bench.at(name);
  Operand* fresh = c.append > 0 ? &bench.at(std::string(name) + "_new") : nullptr;
  const std::int64_t dim = operand.spec.shape[static_cast<std::size_t>(operand.spec.rank - 1)];
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    const Sequence& s = sequences[static_cast<std::size_t>(b)];
    for (std::int64_t j = 0; j < s.lens.k; ++j) {
      const std::int64_t row = s.leftpad + j;
      for (std::int64_t h = 0; h < c.nheads_k; ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          if (row < s.cached) {
            operand.set(k_row_index(b, row, h, d), value(b, j, h, d));
          } else {
            fresh->set({b, row - s.cached, h, d}, value(b, j, h, d));
          }
        }
      }
    }
  }
}

AttentionProblem BuiltCase::forward_problem() const {
  AttentionProblem forward = bench.problem;
  forward.pass = Pass::kForward;
  forward.dout = forward.dlse = forward.dq = forward.dk = forward.dv = {};
  forward.dbias = forward.dsinks = {};
  return forward;
}

void BuiltCase::compute_forward() {
  const AttentionProblem forward = forward_problem();
  const Result<OracleResult> result =
      oracle(forward, bench.tensors, {.rows = {}, .num_threads = 1});
  if (!result) {
    ADD_FAILURE() << to_line(c) << "\nthe oracle refuses: " << result.status().message();
    return;
  }
  const auto flat = [](const TensorSpec& spec, const Index& index) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
      offset = offset * spec.shape[axis] + index[axis];
    }
    return static_cast<std::size_t>(offset);
  };
  Operand& out = bench.at("out");
  Operand& lse = bench.at("lse");
  fill_queries("out", [&](std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) {
    return result->out[flat(out.spec, q_index(b, i, h, d))];
  });
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t h = 0; h < c.nheads_q(); ++h) {
      for (std::int64_t i = 0; i < sequences[static_cast<std::size_t>(b)].lens.q; ++i) {
        const Index index = lse_index(b, h, i);
        lse.set(index, result->lse[flat(lse.spec, index)]);
      }
    }
  }
}

ChangedElements BuiltCase::appended_elements() const {
  ChangedElements changed;
  if (c.append == 0) return changed;
  for (const std::string_view name : {"k", "v"}) {
    const TensorSpec& spec = bench.at(name).spec;
    std::vector<std::int64_t> offsets;
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      const Sequence& s = sequences[static_cast<std::size_t>(b)];
      for (std::int64_t row = s.cached; row < s.cached + c.append; ++row) {
        for (std::int64_t h = 0; h < c.nheads_k; ++h) {
          for (std::int64_t d = 0; d < c.headdim; ++d) {
            offsets.push_back(offset_of(spec, k_row_index(b, row, h, d)));
          }
        }
      }
    }
    changed.emplace_back(name, std::move(offsets));
  }
  return changed;
}

}  // namespace foveal::test
