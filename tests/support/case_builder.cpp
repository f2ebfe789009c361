// Fills a BuiltCase: poison first, then what the contract lets a kernel read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/built_case.hpp"
#include "support/operand_layout.hpp"
#include "support/random.hpp"

namespace foveal::test {

namespace {

class CaseBuilder {
 public:
  explicit CaseBuilder(BuiltCase& built) : built_(built), c_(built.c) {}

  void build() {
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

 private:
  enum Part : std::uint64_t {
    kQ,
    kK,
    kV,
    kDout,
    kDlse,
    kBias,
    kSinks,
    kKNew,
    kVNew,
    kPages,
    kOutA,
    kOutB,
    kLseA,
    kLseB,
    kDropout
  };

  [[nodiscard]] Random random(Part part) const { return Random(derive_seed(c_.seed, part)); }

  [[nodiscard]] double poison() const {
    switch (c_.poison) {
      case Poison::kNan: return std::numeric_limits<double>::quiet_NaN();
      case Poison::kInfinity: return std::numeric_limits<double>::infinity();
      case Poison::kHuge: return 6e4;
      case Poison::kZero: break;
    }
    return 0;
  }

  void poison_all(Operand& operand) const {
    const auto width = static_cast<std::size_t>(dtype_bytes(operand.spec.dtype));
    for (std::size_t i = 0; i < operand.memory.size() / width; ++i) {
      store_element(operand.spec.dtype, operand.memory.data(), static_cast<std::int64_t>(i),
                    poison());
    }
  }

  [[nodiscard]] std::vector<std::int64_t> shape_q() const {
    const std::int64_t heads = c_.nheads_q();
    if (c_.packed_q()) return {total(&Sequence::capacity_q), heads, c_.headdim};
    return {c_.batch(), dense_rows_q(c_), heads, c_.headdim};
  }

  [[nodiscard]] std::vector<std::int64_t> shape_k() const {
    const std::int64_t heads = c_.nheads_k;
    if (c_.packed_k()) return {total(&Sequence::capacity_k), heads, c_.headdim};
    if (c_.k_form == KForm::kPaged) return {num_pages_, c_.page_size, heads, c_.headdim};
    return {c_.batch() + (c_.cache_batch_idx ? 2 : 0), dense_rows_k(c_), heads, c_.headdim};
  }

  [[nodiscard]] std::vector<std::int64_t> shape_lse() const {
    if (c_.packed_q()) return {c_.nheads_q(), total(&Sequence::capacity_q)};
    return {c_.batch(), c_.nheads_q(), dense_rows_q(c_)};
  }

  [[nodiscard]] std::int64_t total(std::int64_t Sequence::*rows) const {
    std::int64_t sum = 0;
    for (const Sequence& s : built_.sequences) sum += s.*rows;
    return sum;
  }

  Operand& add(std::string_view name, const PlacedSpec& placed) {
    return built_.bench.add(name, placed.spec, placed.lead);
  }

  Operand& add_plain(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
                     bool padded = false) {
    return built_.bench.add(name, place_plain(dtype, shape, padded));
  }

  void add_integers(std::string_view name, const std::vector<std::int64_t>& values) {
    Operand& operand = add_plain(name, DType::kInt32, {static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i) {
      operand.set({static_cast<std::int64_t>(i)}, static_cast<double>(values[i]));
    }
  }

  template <class Function>
  void add_per_sequence(std::string_view name, Function&& value) {
    std::vector<std::int64_t> values;
    for (const Sequence& s : built_.sequences) values.push_back(value(s));
    add_integers(name, values);
  }

  void set_options() {
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

  void add_lengths() {
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

  /// Sequence b uses a row of the cache that is not b; two rows are nobody's.
  void add_cache_rows() {
    const std::int64_t rows = c_.batch() + 2;
    for (std::int64_t b = 0; b < c_.batch(); ++b) {
      built_.sequences[static_cast<std::size_t>(b)].cache_row = rows - 1 - b;
    }
    add_per_sequence("cache_batch_idx", [](const Sequence& s) { return s.cache_row; });
  }

  /// Pages out of order, three of them unused; table entries past the used ones point anywhere.
  void add_pages() {
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

  /// Keys that some row of their sequence sees, or that are appended.
  [[nodiscard]] bool key_is_seen(const Sequence& s, std::int64_t j) const {
    for (std::int64_t i = 0; i < s.lens.q; ++i) {
      if (c_.sees(s.lens, i, j)) return true;
    }
    return false;
  }

  void add_keys() {
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

  void fill_rows(std::string_view name, Part part) {
    poison_all(built_.bench.at(name));
    Random values = random(part);
    built_.fill_queries(name, [&](auto...) { return values.normal(); });
  }

  void add_queries() {
    // One element for all is what a gradient may be; queries that are all alike test little.
    const Layout layout = c_.q_layout == Layout::kExpandedAll ? Layout::kBshd : c_.q_layout;
    add("q", place_rows(c_.dtype, shape_q(), layout));
    fill_rows("q", kQ);
    if (c_.pass == Pass::kAppend) {
      add("q_rotated", place_rows(c_.dtype, shape_q(), c_.out_layout));
    }
  }

  void add_appended() {
    for (const auto& [name, part] : {std::pair{"k_new", kKNew}, {"v_new", kVNew}}) {
      const std::vector<std::int64_t> shape{c_.batch(), c_.append, c_.nheads_k, c_.headdim};
      Operand& operand = add(name, place_rows(c_.dtype, shape, c_.q_layout));
      poison_all(operand);
      Random values = random(part);
      for_each_index(operand.spec,
                     [&](const Index& index) { operand.set(index, values.normal()); });
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

  void add_score_operands() {
    const bool padded = c_.q_layout == Layout::kPadded;
    if (c_.sinks) {
      Operand& sinks = add_plain("sinks", DType::kFloat32, {c_.nheads_q()}, padded);
      Random values = random(kSinks);
      for_each_index(sinks.spec, [&](const Index& index) { sinks.set(index, values.normal()); });
    }
    if (c_.alibi != AlibiKind::kNone) {
      const std::int64_t heads = c_.nheads_q();
      Operand& slopes =
          c_.alibi == AlibiKind::kHeads
              ? add_plain("alibi_slopes", DType::kFloat32, {heads}, padded)
              : add_plain("alibi_slopes", DType::kFloat32, {c_.batch(), heads}, padded);
      for_each_index(slopes.spec, [&](const Index& index) {
        const std::int64_t h = c_.alibi == AlibiKind::kHeads ? index[0] : index[1];
        const std::int64_t b = c_.alibi == AlibiKind::kHeads ? 0 : index[0];
        slopes.set(index,
                   std::exp2(-0.5 * static_cast<double>(h + 1)) / static_cast<double>(b + 1));
      });
    }
    if (c_.bias != BiasKind::kNone) add_bias();
  }

  /// Numbers only where some row sees the key: what is masked reads no bias.
  void add_bias() {
    const std::int64_t full[] = {c_.batch(), c_.nheads_q(), dense_rows_q(c_), dense_rows_k(c_)};
    std::vector<std::int64_t> shape(std::begin(full), std::end(full));
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (c_.bias_shape[axis] == '1') shape[axis] = 1;
    }
    const DType dtype = c_.bias == BiasKind::kMask        ? DType::kBool
                        : c_.bias == BiasKind::kSameDtype ? c_.dtype
                                                          : DType::kFloat32;
    Operand& bias = add_plain("bias", dtype, shape, c_.q_layout == Layout::kPadded);
    poison_all(bias);
    for (std::int64_t b = 0; b < c_.batch(); ++b) {
      const SeqLens& lens = built_.sequences[static_cast<std::size_t>(b)].lens;
      for (std::int64_t h = 0; h < c_.nheads_q(); ++h) {
        for (std::int64_t i = 0; i < lens.q; ++i) {
          for (std::int64_t j = 0; j < lens.k; ++j) {
            if (!c_.sees(lens, i, j)) continue;
            const Index index = built_.bias_index(b, h, i, j);
            bias.set(index, bias_value(index));
          }
        }
      }
    }
    if (c_.pass == Pass::kBackward && c_.dbias) {
      add_plain("dbias", dtype, shape, c_.out_layout == Layout::kPadded);
    }
  }

  /// A function of the place, so that a broadcast element has one value. Some rows of a mask are
  /// all false.
  [[nodiscard]] double bias_value(const Index& index) const {
    std::uint64_t place = kBias;
    for (const std::int64_t coordinate : index) {
      place = place * 100003u + static_cast<std::uint64_t>(coordinate);
    }
    Random values(derive_seed(c_.seed, place));
    if (c_.bias != BiasKind::kMask) return values.normal();
    return index[2] % 5 != 3 && values.chance(0.75) ? 1 : 0;
  }

  void add_outputs() {
    const DType out_dtype = c_.fp32_out ? DType::kFloat32 : c_.dtype;
    const DType grad_dtype = c_.fp32_grads ? DType::kFloat32 : c_.dtype;
    const bool padded = c_.out_layout == Layout::kPadded;
    const bool backward = c_.pass == Pass::kBackward;
    Operand& out = add("out", place_rows(out_dtype, shape_q(), c_.out_layout));
    if (backward) poison_all(out);
    if (backward || c_.lse) {
      Operand& lse = add_plain("lse", DType::kFloat32, shape_lse(), padded);
      if (backward) poison_all(lse);
    }
    if (!backward) return;
    add("dout", place_rows(out_dtype, shape_q(), c_.q_layout));
    fill_rows("dout", kDout);
    if (c_.dlse) {
      Operand& dlse = add_plain("dlse", DType::kFloat32, shape_lse(), padded);
      poison_all(dlse);
      Random values = random(kDlse);
      for (std::int64_t b = 0; b < c_.batch(); ++b) {
        for (std::int64_t h = 0; h < c_.nheads_q(); ++h) {
          for (std::int64_t i = 0; i < built_.sequences[static_cast<std::size_t>(b)].lens.q; ++i) {
            dlse.set(built_.lse_index(b, h, i), values.normal());
          }
        }
      }
    }
    if (c_.dq) add("dq", place_rows(grad_dtype, shape_q(), c_.out_layout));
    if (c_.dk) add("dk", place_rows(grad_dtype, shape_k(), c_.out_layout));
    if (c_.dv) add("dv", place_rows(grad_dtype, shape_k(), c_.out_layout));
    if (c_.dsinks) add_plain("dsinks", DType::kFloat32, {c_.nheads_q()}, padded);
  }

  /// By value or, for odd seeds, through pointers. The offset uses more than 32 bits.
  void set_dropout() {
    if (c_.dropout == 0) return;
    Random values = random(kDropout);
    AttentionTensors& tensors = built_.bench.tensors;
    const std::uint64_t seed = values.bits();
    const std::uint64_t offset = values.bits() >> 20;
    if (c_.seed % 2 == 0) {
      tensors.dropout_seed = seed;
      tensors.dropout_offset = offset;
      return;
    }
    built_.dropout_state = {seed, offset};
    tensors.dropout_seed_ptr = &built_.dropout_state[0];
    tensors.dropout_offset_ptr = &built_.dropout_state[1];
  }

  void add_merge_operands() {
    const bool padded = c_.out_layout == Layout::kPadded;
    for (const auto& [name, part] : {std::pair{"out_a", kOutA}, {"out_b", kOutB}}) {
      add(name, place_rows(c_.dtype, shape_q(), c_.q_layout));
      fill_rows(name, part);
    }
    for (const auto& [name, part] : {std::pair{"lse_a", kLseA}, {"lse_b", kLseB}}) {
      Operand& lse = add_plain(name, DType::kFloat32, shape_lse(), padded);
      poison_all(lse);
      Random values = random(part);
      for_each_index(lse.spec, [&](const Index& index) {
        const bool empty = values.chance(0.2);
        lse.set(index, empty ? -std::numeric_limits<double>::infinity() : 3 * values.normal());
      });
    }
    add("out", place_rows(c_.fp32_out ? DType::kFloat32 : c_.dtype, shape_q(), c_.out_layout));
    if (c_.lse) add_plain("lse", DType::kFloat32, shape_lse(), padded);
  }

  BuiltCase& built_;
  const Case& c_;
  std::int64_t num_pages_ = 0;
};

}  // namespace

void build_operands(BuiltCase& built) { CaseBuilder(built).build(); }

}  // namespace foveal::test
