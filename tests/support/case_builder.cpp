// Lengths, caches, queries and appended tokens.
#include "support/case_builder.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace foveal::test {

void CaseBuilder::build() {
  set_options();
  if (c_.pass == Pass::kMerge) return add_merge_operands();
  add_lengths();
  add_keys();
  if (c_.pass != Pass::kAppend || c_.rotary != Rotary::kNone) add_queries();
  if (c_.append > 0) add_appended();
  if (c_.pass == Pass::kAppend) return;
  add_score_operands();
  add_outputs();
  set_dropout();
}

double CaseBuilder::poison() const {
  switch (c_.poison) {
    case Poison::kNan: return std::numeric_limits<double>::quiet_NaN();
    case Poison::kInfinity: return std::numeric_limits<double>::infinity();
    case Poison::kHuge: return 6e4;
    case Poison::kZero: break;
  }
  return 0;
}

void CaseBuilder::poison_all(Operand& operand) const {
  const auto width = static_cast<std::size_t>(dtype_bytes(operand.spec.dtype));
  for (std::size_t i = 0; i < operand.memory.size() / width; ++i) {
    store_element(operand.spec.dtype, operand.memory.data(), static_cast<std::int64_t>(i),
                  poison());
  }
}

std::vector<std::int64_t> CaseBuilder::shape_q() const {
  const std::int64_t heads = c_.nheads_q();
  if (c_.packed_q()) return {total(&Sequence::capacity_q), heads, c_.headdim};
  return {c_.batch(), dense_rows_q(c_), heads, c_.headdim};
}

std::vector<std::int64_t> CaseBuilder::shape_k() const {
  const std::int64_t heads = c_.nheads_k;
  if (c_.packed_k()) return {total(&Sequence::capacity_k), heads, c_.headdim};
  if (c_.k_form == KForm::kPaged) return {num_pages_, c_.page_size, heads, c_.headdim};
  return {c_.batch() + (c_.cache_batch_idx ? 2 : 0), dense_rows_k(c_), heads, c_.headdim};
}

std::vector<std::int64_t> CaseBuilder::shape_lse() const {
  if (c_.packed_q()) return {c_.nheads_q(), total(&Sequence::capacity_q)};
  return {c_.batch(), c_.nheads_q(), dense_rows_q(c_)};
}

std::int64_t CaseBuilder::total(std::int64_t Sequence::*rows) const {
  std::int64_t sum = 0;
  for (const Sequence& s : built_.sequences) sum += s.*rows;
  return sum;
}

Operand& CaseBuilder::add(std::string_view name, const PlacedSpec& placed) {
  return built_.bench.add(name, placed.spec, placed.lead);
}

Operand& CaseBuilder::add_plain(std::string_view name, DType dtype,
                                const std::vector<std::int64_t>& shape, bool padded) {
  return built_.bench.add(name, place_plain(dtype, shape, padded));
}

void CaseBuilder::add_integers(std::string_view name, const std::vector<std::int64_t>& values) {
  Operand& operand = add_plain(name, DType::kInt32, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) {
    operand.set({static_cast<std::int64_t>(i)}, static_cast<double>(values[i]));
  }
}

void CaseBuilder::set_options() {
  AttentionProblem& p = built_.bench.problem;
  p.pass = c_.pass;
  p.deterministic = c_.deterministic;
  p.batch_invariant = c_.batch_invariant;
  if (c_.pass == Pass::kMerge) return;
  p.causal = c_.causal;
  p.window_size_left = c_.window_left;
  p.window_size_right = c_.window_right;
  if (c_.scale != 0) p.softmax_scale = c_.scale;
  p.softcap = c_.softcap;
  p.dropout_p = c_.dropout;
  p.rotary_interleaved = c_.rotary == Rotary::kInterleaved;
}

void CaseBuilder::add_lengths() {
  AttentionProblem& p = built_.bench.problem;
  const bool exact = c_.seed % 3 != 0;  // else absent, which takes the total
  const auto max_seqlen = [&](std::int64_t Sequence::*rows) {
    std::int64_t most = 0;
    for (const Sequence& s : built_.sequences) most = std::max(most, s.*rows);
    return c_.loose_max_seqlen ? most + 5 : exact ? most : 0;
  };
  const auto cumulative = [&](std::int64_t Sequence::*rows) {
    std::vector<std::int64_t> sums{0};
    for (const Sequence& s : built_.sequences) sums.push_back(sums.back() + s.*rows);
    return sums;
  };
  const bool has_queries = c_.pass != Pass::kAppend || c_.rotary != Rotary::kNone;
  if (c_.packed_q() && has_queries) {
    add_integers("cu_seqlens_q", cumulative(&Sequence::capacity_q));
    p.max_seqlen_q = max_seqlen(&Sequence::capacity_q);
  }
  if (c_.packed_k()) {
    add_integers("cu_seqlens_k", cumulative(&Sequence::capacity_k));
    p.max_seqlen_k = max_seqlen(&Sequence::capacity_k);
  }
  if ((c_.q_form == QForm::kUsed || c_.q_form == QForm::kPackedUsed) && has_queries) {
    add_per_sequence("seqused_q", [](const Sequence& s) { return s.lens.q; });
  }
  if (c_.k_form != KForm::kDense && c_.k_form != KForm::kPacked) {
    add_per_sequence("seqused_k", [](const Sequence& s) { return s.cached; });
  }
  if (c_.leftpad > 0) {
    add_per_sequence("leftpad_k", [](const Sequence& s) { return s.leftpad; });
  }
  if (c_.cache_batch_idx) add_cache_rows();
  if (c_.k_form == KForm::kPaged) add_pages();
}

void CaseBuilder::add_cache_rows() {
  const std::int64_t rows = c_.batch() + 2;
  for (std::int64_t b = 0; b < c_.batch(); ++b) {
    built_.sequences[static_cast<std::size_t>(b)].cache_row = rows - 1 - b;
  }
  add_per_sequence("cache_batch_idx", [](const Sequence& s) { return s.cache_row; });
}

void CaseBuilder::add_pages() {
  const std::int64_t columns = dense_rows_k(c_) / c_.page_size;
  const auto pages_of = [&](const Sequence& s) {
    return (s.cached + c_.append + c_.page_size - 1) / c_.page_size;
  };
  num_pages_ = 3;
  for (const Sequence& s : built_.sequences) num_pages_ += pages_of(s);
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages_));
  std::iota(order.begin(), order.end(), 0);
  Random shuffle = random(kPages);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(
        order[i - 1],
        order[static_cast<std::size_t>(shuffle.integer(0, static_cast<std::int64_t>(i) - 1))]);
  }
  const std::int32_t wild[] = {-1, std::numeric_limits<std::int32_t>::max(),
                               static_cast<std::int32_t>(num_pages_),
                               std::numeric_limits<std::int32_t>::min(), 1 << 24};
  Operand& table = add_plain("block_table", DType::kInt32, {c_.batch(), columns},
                             c_.kv_layout == Layout::kPadded);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < c_.batch(); ++b) {
    Sequence& s = built_.sequences[static_cast<std::size_t>(b)];
    for (std::int64_t page = 0; page < columns; ++page) {
      const bool used = page < pages_of(s);
      const std::int32_t entry = used ? order[next++] : wild[(b + page) % 5];
      if (used) s.pages.push_back(entry);
      table.set({b, page}, entry);
    }
  }
}

bool CaseBuilder::key_is_seen(const Sequence& s, std::int64_t j) const {
  for (std::int64_t i = 0; i < s.lens.q; ++i) {
    if (c_.sees(s.lens, i, j)) return true;
  }
  return false;
}

void CaseBuilder::add_keys() {
  for (const auto& [name, part] : {std::pair{"k", kK}, {"v", kV}}) {
    Operand& operand = add(name, place_rows(c_.dtype, shape_k(), c_.kv_layout));
    poison_all(operand);
    Random values = random(part);
    for (std::int64_t b = 0; b < c_.batch(); ++b) {
      const Sequence& s = built_.sequences[static_cast<std::size_t>(b)];
      for (std::int64_t row = s.leftpad; row < s.cached; ++row) {
        if (c_.pass != Pass::kAppend && !key_is_seen(s, row - s.leftpad)) continue;
        for (std::int64_t h = 0; h < c_.nheads_k; ++h) {
          for (std::int64_t d = 0; d < c_.headdim; ++d) {
            operand.set(built_.k_row_index(b, row, h, d), values.normal());
          }
        }
      }
    }
  }
}

void CaseBuilder::fill_rows(std::string_view name, Part part) {
  poison_all(built_.bench.at(name));
  Random values = random(part);
  built_.fill_queries(name, [&](auto...) { return values.normal(); });
}

void CaseBuilder::add_queries() {
  // One element for all is what a gradient may be; queries that are all alike test little.
  const Layout layout = c_.q_layout == Layout::kExpandedAll ? Layout::kBshd : c_.q_layout;
  add("q", place_rows(c_.dtype, shape_q(), layout));
  fill_rows("q", kQ);
  if (c_.pass == Pass::kAppend) {
    add("q_rotated", place_rows(c_.dtype, shape_q(), c_.out_layout));
  }
}

void CaseBuilder::add_appended() {
  for (const auto& [name, part] : {std::pair{"k_new", kKNew}, {"v_new", kVNew}}) {
    const std::vector<std::int64_t> shape{c_.batch(), c_.append, c_.nheads_k, c_.headdim};
    Operand& operand = add(name, place_rows(c_.dtype, shape, c_.q_layout));
    poison_all(operand);
    Random values = random(part);
    for_each_index(operand.spec, [&](const Index& index) { operand.set(index, values.normal()); });
  }
  if (c_.rotary == Rotary::kNone) return;
  std::int64_t positions = 2;
  for (const Sequence& s : built_.sequences) {
    positions = std::max(positions, s.cached + std::max(c_.append, s.lens.q));
  }
  const DType dtype = c_.rotary_fp32 ? DType::kFloat32 : c_.dtype;
  for (const char* name : {"rotary_cos", "rotary_sin"}) {
    Operand& table =
        add_plain(name, dtype, {positions, c_.rotary_dim / 2}, c_.q_layout == Layout::kPadded);
    const bool cosine = std::string_view(name) == "rotary_cos";
    for_each_index(table.spec, [&](const Index& index) {
      const double exponent =
          -2.0 * static_cast<double>(index[1]) / static_cast<double>(c_.rotary_dim);
      const double angle = static_cast<double>(index[0]) * std::pow(10000.0, exponent);
      table.set(index, cosine ? std::cos(angle) : std::sin(angle));
    });
  }
}

void build_operands(BuiltCase& built) { CaseBuilder(built).build(); }

}  // namespace foveal::test
