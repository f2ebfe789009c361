// What enters the scores, and what a pass writes or its backward starts from.
#include <cmath>
#include <limits>

#include "support/case_builder.hpp"

namespace foveal::test {

void CaseBuilder::add_score_operands() {
  const bool padded = c_.q_layout == Layout::kPadded;
  if (c_.sinks) {
    Operand& sinks = add_plain("sinks", DType::kFloat32, {c_.nheads_q()}, padded);
    Random values = random(kSinks);
    for_each_index(sinks.spec, [&](const Index& index) { sinks.set(index, values.normal()); });
  }
  if (c_.alibi != AlibiKind::kNone) {
    const std::int64_t heads = c_.nheads_q();
    Operand& slopes = c_.alibi == AlibiKind::kHeads
                          ? add_plain("alibi_slopes", DType::kFloat32, {heads}, padded)
                          : add_plain("alibi_slopes", DType::kFloat32, {c_.batch(), heads}, padded);
    for_each_index(slopes.spec, [&](const Index& index) {
      const std::int64_t h = c_.alibi == AlibiKind::kHeads ? index[0] : index[1];
      const std::int64_t b = c_.alibi == AlibiKind::kHeads ? 0 : index[0];
      slopes.set(index, std::exp2(-0.5 * static_cast<double>(h + 1)) / static_cast<double>(b + 1));
    });
  }
  if (c_.bias != BiasKind::kNone) add_bias();
}

void CaseBuilder::add_bias() {
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

double CaseBuilder::bias_value(const Index& index) const {
  std::uint64_t place = kBias;
  for (const std::int64_t coordinate : index) {
    place = place * 100003u + static_cast<std::uint64_t>(coordinate);
  }
  Random values(derive_seed(c_.seed, place));
  if (c_.bias != BiasKind::kMask) return values.normal();
  return index[2] % 5 != 3 && values.chance(0.75) ? 1 : 0;
}

void CaseBuilder::add_outputs() {
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

void CaseBuilder::set_dropout() {
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

void CaseBuilder::add_merge_operands() {
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

}  // namespace foveal::test
