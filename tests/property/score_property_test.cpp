// What scaling, shifting, widening and repeating does to a result.
#include "property/property_case.hpp"

namespace foveal::test {
namespace {

/// Two cases on the same data that must agree.
void same_result(const Case& c, const Case& other, Match match) {
  RC_PRE(illegal_reason(other).empty());
  BuiltCase a(c);
  BuiltCase b(other);
  SequenceCopy{a, b}.all();
  run_or_discard(a);
  run_or_discard(b);
  SequenceComparison{a, b, match}.all();
}

void wide_window(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    draft.window_left = draft.window_right = -1;
    without_rotary(draft);
  });
  Case wide = c;
  wide.window_left = *rc::gen::inRange<std::int64_t>(5000, 1'000'000'000);
  if (!c.causal) wide.window_right = *rc::gen::inRange<std::int64_t>(5000, 1'000'000'000);
  same_result(c, wide, Match::kRounded);
}

FOVEAL_PROPERTY(Window, ForwardWiderThanTheSequenceIsNone) { wide_window(Pass::kForward); }
FOVEAL_PROPERTY(Window, BackwardWiderThanTheSequenceIsNone) { wide_window(Pass::kBackward); }

void causal_of_one(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    draft.causal = false;
    draft.window_left = draft.window_right = -1;
    without_rotary(draft);
    for (SeqLens& lens : draft.lens) lens.q = 1;
  });
  Case causal = c;
  causal.causal = true;
  same_result(c, causal, Match::kRounded);
}

FOVEAL_PROPERTY(Causal, ForwardOfOneQueryIsNoMask) { causal_of_one(Pass::kForward); }
FOVEAL_PROPERTY(Causal, BackwardOfOneQueryIsNoMask) { causal_of_one(Pass::kBackward); }

void causal_is_right_0(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    draft.causal = true;
    draft.window_right = -1;
  });
  Case windowed = c;
  windowed.causal = false;
  windowed.window_right = 0;
  same_result(c, windowed, match_of(c));
}

FOVEAL_PROPERTY(Causal, ForwardIsAWindowWithNothingToTheRight) {
  causal_is_right_0(Pass::kForward);
}
FOVEAL_PROPERTY(Causal, BackwardIsAWindowWithNothingToTheRight) {
  causal_is_right_0(Pass::kBackward);
}

void no_dropout(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) { draft.dropout = 0; });
  Case tiny = c;
  tiny.dropout = 1e-12f;  // rounds to none
  BuiltCase a(c);
  BuiltCase b(tiny);
  SequenceCopy{a, b}.all();
  b.bench.tensors.dropout_seed = 77;
  run_or_discard(a);
  run_or_discard(b);
  SequenceComparison{a, b, match_of(c)}.all();
}

FOVEAL_PROPERTY(Dropout, ForwardOfNothingIsNone) { no_dropout(Pass::kForward); }
FOVEAL_PROPERTY(Dropout, BackwardOfNothingIsNone) { no_dropout(Pass::kBackward); }

FOVEAL_PROPERTY(Scaling, OfVScalesOut) {
  const Case c = *any_case(Pass::kForward);
  const double factor = *rc::gen::element(-1.0, 0.5, 2.0, -4.0);
  BuiltCase a(c);
  BuiltCase b(c);
  SequenceCopy{a, b}.all();
  for (const std::string_view name : {"v", "v_new"}) {
    if (!b.bench.has(name)) continue;
    Operand& v = b.bench.at(name);
    const Operand& from = a.bench.at(name);
    for_each_index(v.spec, [&](const Index& index) { v.set(index, factor * from.get(index)); });
  }
  run_or_discard(a);
  run_or_discard(b);
  SequenceComparison outputs{a, b, Match::kRounded, factor};
  SequenceComparison lse{a, b, Match::kBits};
  for (std::int64_t s = 0; s < c.batch(); ++s) {
    outputs.queries("out", s, s);
    lse.lse(s, s);
  }
}

FOVEAL_PROPERTY(Bias, AConstantMovesOnlyTheLse) {
  const Case c = *any_case(Pass::kForward, [](Case& draft) {
    draft.sinks = false;
    draft.bias = BiasKind::kFloat32;
    draft.lse = true;
    if (draft.packed_q()) draft.q_form = QForm::kUsed;
    if (draft.packed_k()) draft.k_form = KForm::kCache;
    draft.loose_max_seqlen = false;
  });
  const double constant = *rc::gen::element(-3.0, 0.25, 8.0);
  BuiltCase a(c);
  BuiltCase b(c);
  SequenceCopy{a, b}.all();
  b.bench.fill("bias", [&](const Index& index) { return a.at("bias", index) + constant; });
  run_or_discard(a);
  run_or_discard(b);
  // The sum of score and bias rounds elsewhere: a part in 2^24 of a weight.
  SequenceComparison outputs{a, b, Match::kRounded};
  SequenceComparison lse{a, b, Match::kRounded, 1, constant};
  for (std::int64_t s = 0; s < c.batch(); ++s) {
    outputs.queries("out", s, s);
    lse.lse(s, s);
  }
}

FOVEAL_PROPERTY(GroupedHeads, ForwardIsRepeatedHeads) {
  const Case c = *any_case(Pass::kForward, [](Case& draft) {
    if (shares_memory(draft.kv_layout)) draft.kv_layout = Layout::kBshd;
    if (shares_memory(draft.q_layout)) draft.q_layout = Layout::kBshd;
    draft.group = draft.group % 4 + 2;
  });
  Case repeated = c;
  repeated.nheads_k = c.nheads_q();
  repeated.group = 1;
  same_result(c, repeated, Match::kRounded);
}

/// dk and dv of a KV head are the sums of those of its repeated heads.
FOVEAL_PROPERTY(GroupedHeads, BackwardSumsRepeatedHeads) {
  const Case c = *any_case(Pass::kBackward, [](Case& draft) {
    draft.dtype = DType::kFloat32;
    if (shares_all(draft)) draft.q_layout = draft.kv_layout = Layout::kBshd;
    draft.group = draft.group % 4 + 2;
    draft.dq = draft.dk = draft.dv = true;
  });
  Case repeated_case = c;
  repeated_case.nheads_k = c.nheads_q();
  repeated_case.group = 1;
  BuiltCase grouped(c);
  BuiltCase repeated(repeated_case);
  SequenceCopy{grouped, repeated}.all();
  run_or_discard(grouped);
  run_or_discard(repeated);
  const SequenceComparison compare{grouped, repeated, Match::kRounded};
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    compare.queries("dq", b, b);
    for (const std::string_view name : {"dk", "dv"}) {
      const double scale = compare.largest(name);
      for (std::int64_t j = 0; j < c.lens[static_cast<std::size_t>(b)].k; ++j) {
        for (std::int64_t h = 0; h < c.nheads_k; ++h) {
          for (std::int64_t d = 0; d < c.headdim; ++d) {
            double sum = 0;
            for (std::int64_t member = 0; member < c.group; ++member) {
              sum += repeated.at(name, repeated.key_index(b, j, h * c.group + member, d));
            }
            compare.element(name, grouped.at(name, grouped.key_index(b, j, h, d)), sum, scale);
          }
        }
      }
    }
  }
}

/// Gradients of a sum of losses are the sums of their gradients.
FOVEAL_PROPERTY(Backward, IsLinearInTheOutputGradient) {
  const Case c = *any_case(Pass::kBackward, [](Case& draft) {
    draft.dtype = DType::kFloat32;
    draft.dlse = false;
    draft.dq = draft.dk = draft.dv = true;
    if (shares_memory(draft.q_layout)) draft.q_layout = Layout::kBshd;
  });
  BuiltCase first(c);
  BuiltCase second(c);
  BuiltCase sum(c);
  second.fill_queries("dout", [&](auto b, auto i, auto h, auto d) {
    return std::cos(static_cast<double>(b + 3 * i + 7 * h + 11 * d));
  });
  sum.fill_queries("dout", [&](auto b, auto i, auto h, auto d) {
    return first.at("dout", first.q_index(b, i, h, d)) +
           second.at("dout", second.q_index(b, i, h, d));
  });
  run_or_discard(first);
  run_or_discard(second);
  run_or_discard(sum);
  for (const std::string_view name : {"dq", "dk", "dv"}) {
    const std::vector<double> a = first.bench.at(name).values();
    const std::vector<double> b = second.bench.at(name).values();
    const std::vector<double> both = sum.bench.at(name).values();
    double scale = 1;
    for (std::size_t i = 0; i < a.size(); ++i) {
      scale = std::max({scale, std::abs(a[i]), std::abs(b[i])});
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!(std::abs(a[i] + b[i] - both[i]) <= 3e-5 * scale)) {
        RC_FAIL(std::string(name) + ": " + std::to_string(a[i]) + " + " + std::to_string(b[i]) +
                " is not " + std::to_string(both[i]) + "\n  " + to_line(c));
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
