// The factors of each pass, and which of their levels go together.
#include <string_view>

#include "support/case_grid.hpp"
#include "support/case_levels.hpp"

namespace foveal::test {
namespace {

using Draft = CaseDraft;

std::vector<CaseFactor> forward_factors() {
  return {dtype_factor(),
          headdim_factor(),
          group_factor(),
          heads_factor(),
          batch_factor(),
          seqlen_q_factor({0, 1, 2, 3, 7, 16, 17, 31, 33, 63, 64, 65, 129}),
          seqlen_k_factor({0, 1, 2, 5, 15, 16, 17, 33, 63, 64, 65, 129, 300, 1100, 2100}),
          mask_factor(),
          forward_storage_factor(),
          softcap_factor(),
          sinks_factor(false),
          bias_factor(false),
          alibi_factor(),
          dropout_factor(),
          layout_factor("q_layout", &Case::q_layout, true),
          layout_factor("kv_layout", &Case::kv_layout, true),
          layout_factor("out_layout", &Case::out_layout, false),
          yes_or_no("fp32_out", &Case::fp32_out),
          lse_factor(),
          scale_factor(),
          yes_or_no("batch_invariant", &Case::batch_invariant),
          yes_or_no("deterministic", &Case::deterministic),
          threads_factor(),
          poison_factor(),
          slack_factor(),
          yes_or_no("loose_max_seqlen", &Case::loose_max_seqlen)};
}

std::vector<CaseFactor> backward_factors() {
  return {dtype_factor(),
          headdim_factor(),
          group_factor(),
          heads_factor(),
          batch_factor(),
          seqlen_q_factor({0, 1, 2, 7, 16, 17, 33, 63, 64, 65, 129}),
          seqlen_k_factor({0, 1, 2, 15, 17, 33, 63, 64, 65, 129, 300}),
          mask_factor(),
          backward_storage_factor(),
          softcap_factor(),
          sinks_factor(true),
          bias_factor(true),
          alibi_factor(),
          dropout_factor(),
          layout_factor("q_layout", &Case::q_layout, true),
          layout_factor("kv_layout", &Case::kv_layout, true),
          layout_factor("out_layout", &Case::out_layout, false),
          yes_or_no("fp32_out", &Case::fp32_out),
          yes_or_no("fp32_grads", &Case::fp32_grads),
          yes_or_no("dlse", &Case::dlse),
          gradients_factor(),
          scale_factor(),
          yes_or_no("deterministic", &Case::deterministic),
          yes_or_no("batch_invariant", &Case::batch_invariant),
          threads_factor(),
          poison_factor(),
          slack_factor(),
          yes_or_no("loose_max_seqlen", &Case::loose_max_seqlen)};
}

std::vector<CaseFactor> append_factors() {
  const auto rotary = [](Rotary kind, bool partial, bool fp32) {
    return [=](Draft& d) {
      d.c.rotary = kind;
      d.rotary_partial = partial;
      d.c.rotary_fp32 = fp32;
    };
  };
  return {
      dtype_factor(),
      headdim_factor(),
      group_factor(),
      heads_factor(),
      batch_factor(),
      seqlen_q_factor({0, 1, 3, 17}),
      seqlen_k_factor({1, 16, 17, 65}),
      numbers("append", {1, 2, 5, 17}, [](Draft& d, std::int64_t value) { d.c.append = value; }),
      {"mask",
       {{"none", [](Draft&) {}},
        {"causal", [](Draft& d) { d.c.causal = true; }},
        {"left_2", [](Draft& d) { d.c.window_left = 2; }}}},
      append_storage_factor(),
      {"rotary",
       {{"none", rotary(Rotary::kNone, false, false)},
        {"halves", rotary(Rotary::kHalves, false, false)},
        {"halves_partial", rotary(Rotary::kHalves, true, true)},
        {"interleaved", rotary(Rotary::kInterleaved, false, true)},
        {"interleaved_partial", rotary(Rotary::kInterleaved, true, false)}}},
      layout_factor("q_layout", &Case::q_layout, true),
      layout_factor("kv_layout", &Case::kv_layout, false),
      layout_factor("out_layout", &Case::out_layout, false),
      threads_factor(),
      poison_factor(),
      slack_factor()};
}

std::vector<CaseFactor> merge_factors() {
  return {dtype_factor(),
          headdim_factor(),
          numbers("nheads", {1, 3, 16}, [](Draft& d, std::int64_t value) { d.c.nheads_k = value; }),
          batch_factor(),
          seqlen_q_factor({0, 1, 5, 64, 65}),
          {"storage",
           {storage_level("dense", QForm::kDense, KForm::kDense),
            storage_level("packed", QForm::kPacked, KForm::kPacked)}},
          layout_factor("q_layout", &Case::q_layout, true),
          layout_factor("out_layout", &Case::out_layout, false),
          yes_or_no("fp32_out", &Case::fp32_out),
          lse_factor(),
          threads_factor()};
}

bool is_packed(std::string_view storage_level) {
  return storage_level.find("packed") != std::string_view::npos;
}

/// One direction of levels_meet().
bool one_way(const CaseFactor& fa, const FactorLevel& a, const CaseFactor& fb,
             const FactorLevel& b) {
  if (fa.name == "storage" && fb.name == "bias") return !is_packed(a.name) || b.name == "none";
  if (fa.name == "storage" && fb.name == "kv_layout") {
    const bool appends = a.name.starts_with("append");
    return !appends || !b.name.starts_with("expanded");
  }
  if (fa.name == "seqlen_k" && fb.name == "seqlen_q") {
    return std::stoll(a.name) < 300 || std::stoll(b.name) <= 3;  // long keys: decode
  }
  if (fa.name == "seqlen_k" && fb.name == "headdim") {
    return std::stoll(a.name) < 1000 || std::stoll(b.name) <= 256;
  }
  return true;
}

}  // namespace

std::vector<CaseFactor> case_factors(Pass pass) {
  switch (pass) {
    case Pass::kForward: return forward_factors();
    case Pass::kBackward: return backward_factors();
    case Pass::kAppend: return append_factors();
    case Pass::kMerge: return merge_factors();
  }
  return {};
}

bool levels_meet(const CaseFactor& fa, const FactorLevel& a, const CaseFactor& fb,
                 const FactorLevel& b) {
  return one_way(fa, a, fb, b) && one_way(fb, b, fa, a);
}

}  // namespace foveal::test
