#include "support/case_levels.hpp"

#include <utility>

#include "support/operand_layout.hpp"

namespace foveal::test {

using Draft = CaseDraft;

CaseFactor numbers(std::string name, std::initializer_list<std::int64_t> values,
                   void (*set)(Draft& draft, std::int64_t value)) {
  CaseFactor factor{std::move(name), {}};
  for (const std::int64_t value : values) {
    factor.levels.push_back({std::to_string(value), [set, value](Draft& d) { set(d, value); }});
  }
  return factor;
}

CaseFactor yes_or_no(std::string name, bool Case::*flag) {
  return {std::move(name),
          {{"no", [](Draft&) {}}, {"yes", [flag](Draft& d) { d.c.*flag = true; }}}};
}

CaseFactor dtype_factor() {
  return {"dtype",
          {{"fp32", [](Draft& d) { d.c.dtype = DType::kFloat32; }},
           {"fp16", [](Draft& d) { d.c.dtype = DType::kFloat16; }},
           {"bf16", [](Draft& d) { d.c.dtype = DType::kBFloat16; }}}};
}

CaseFactor headdim_factor() {
  return numbers("headdim", {1,   3,   8,   17,  32,  40,  64,  72,  80,  96,  100, 112,
                             128, 160, 192, 200, 256, 264, 320, 384, 392, 500, 512},
                 [](Draft& d, std::int64_t value) { d.c.headdim = value; });
}

CaseFactor group_factor() {
  return numbers("group", {1, 2, 3, 4, 5, 6, 7, 8, 12, 16},
                 [](Draft& d, std::int64_t value) { d.c.group = value; });
}

CaseFactor heads_factor() {
  return numbers("nheads_k", {1, 2, 3}, [](Draft& d, std::int64_t value) { d.c.nheads_k = value; });
}

CaseFactor batch_factor() {
  return numbers("batch", {0, 1, 2, 3}, [](Draft& d, std::int64_t value) { d.batch = value; });
}

CaseFactor seqlen_q_factor(std::initializer_list<std::int64_t> lengths) {
  return numbers("seqlen_q", lengths, [](Draft& d, std::int64_t value) { d.seqlen_q = value; });
}

CaseFactor seqlen_k_factor(std::initializer_list<std::int64_t> lengths) {
  return numbers("seqlen_k", lengths, [](Draft& d, std::int64_t value) { d.seqlen_k = value; });
}

CaseFactor mask_factor() {
  const auto mask = [](bool causal, std::int64_t left, std::int64_t right) {
    return [=](Draft& d) {
      d.c.causal = causal;
      d.c.window_left = left;
      d.c.window_right = right;
    };
  };
  return {"mask",
          {{"none", mask(false, -1, -1)},
           {"causal", mask(true, -1, -1)},
           {"causal_left_3", mask(true, 3, 0)},
           {"causal_left_64", mask(true, 64, -1)},
           {"causal_wide", mask(true, 5000, 0)},
           {"left_2", mask(false, 2, -1)},
           {"right_1", mask(false, -1, 1)},
           {"both_1", mask(false, 1, 1)},
           {"diagonal", mask(false, 0, 0)},
           {"both_uneven", mask(false, 17, 5)}}};
}

FactorLevel storage_level(std::string name, QForm q, KForm k, std::function<void(Draft&)> more) {
  return {std::move(name), [=](Draft& d) {
            d.c.q_form = q;
            d.c.k_form = k;
            if (more) more(d);
          }};
}

namespace {

FactorLevel paged(QForm q, std::int64_t page_size) {
  return storage_level(
      (q == QForm::kPacked ? "packed_paged_" : "paged_") + std::to_string(page_size), q,
      KForm::kPaged, [page_size](Draft& d) { d.c.page_size = page_size; });
}

}  // namespace

CaseFactor backward_storage_factor() {
  const auto leftpad = [](Draft& d) { d.c.leftpad = 5; };
  return {"storage",
          {storage_level("dense", QForm::kDense, KForm::kDense),
           storage_level("used_cache", QForm::kUsed, KForm::kCache),
           storage_level("packed", QForm::kPacked, KForm::kPacked),
           storage_level("packed_used", QForm::kPackedUsed, KForm::kPackedUsed),
           storage_level("packed_dense", QForm::kPacked, KForm::kDense),
           storage_level("dense_packed", QForm::kDense, KForm::kPacked),
           storage_level("packed_leftpad", QForm::kPacked, KForm::kPacked, leftpad),
           storage_level("cache_leftpad", QForm::kDense, KForm::kCache, leftpad)}};
}

CaseFactor forward_storage_factor() {
  CaseFactor factor = backward_storage_factor();
  const auto add = [&](FactorLevel level) { factor.levels.push_back(std::move(level)); };
  for (const std::int64_t page_size : {1, 4, 16, 32, 48, 64, 256}) {
    add(paged(QForm::kDense, page_size));
  }
  add(paged(QForm::kPacked, 16));
  add(storage_level("cache_rows", QForm::kDense, KForm::kCache,
                    [](Draft& d) { d.c.cache_batch_idx = true; }));
  add(storage_level("paged_leftpad", QForm::kUsed, KForm::kPaged, [](Draft& d) {
    d.c.page_size = 16;
    d.c.leftpad = 21;
  }));
  const auto append = [](std::int64_t tokens, Rotary rotary, std::int64_t page_size) {
    return [=](Draft& d) {
      d.c.append = tokens;
      d.c.rotary = rotary;
      d.c.page_size = page_size;
      d.rotary_partial = tokens == 2;
      d.c.rotary_fp32 = page_size == 4;
      d.c.cache_batch_idx = d.c.k_form == KForm::kCache && tokens == 3;
    };
  };
  add(storage_level("append_cache", QForm::kDense, KForm::kCache, append(3, Rotary::kNone, 16)));
  add(storage_level("append_paged_16", QForm::kDense, KForm::kPaged, append(1, Rotary::kNone, 16)));
  add(storage_level("append_rotary_cache", QForm::kUsed, KForm::kCache,
                    append(2, Rotary::kInterleaved, 16)));
  add(storage_level("append_rotary_paged_4", QForm::kDense, KForm::kPaged,
                    append(5, Rotary::kHalves, 4)));
  add(storage_level("append_rotary_packed", QForm::kPacked, KForm::kPaged,
                    append(1, Rotary::kInterleaved, 32)));
  return factor;
}

CaseFactor softcap_factor() {
  return {"softcap",
          {{"off", [](Draft&) {}}, {"2", [](Draft& d) { d.c.softcap = 2; }}, {"30", [](Draft& d) {
                                                                                d.c.softcap = 30;
                                                                              }}}};
}

namespace {

FactorLevel bias_level(std::string name, BiasKind kind, std::string shape, bool dbias = false) {
  return {std::move(name), [=](Draft& d) {
            d.c.bias = kind;
            d.c.bias_shape = shape;
            d.c.dbias = dbias;
          }};
}

}  // namespace

CaseFactor bias_factor(bool backward) {
  CaseFactor factor{
      "bias",
      {bias_level("none", BiasKind::kNone, "bhqk"),
       bias_level("same", BiasKind::kSameDtype, "bhqk", backward),
       bias_level("fp32", BiasKind::kFloat32, "bhqk"), bias_level("mask", BiasKind::kMask, "bhqk"),
       bias_level("mask_keys", BiasKind::kMask, "b11k"),
       bias_level("mask_rows", BiasKind::kMask, "1hq1"),
       bias_level("fp32_shared", BiasKind::kFloat32, "1hqk", backward),
       bias_level("same_plane", BiasKind::kSameDtype, "11qk", backward)}};
  if (backward) {
    factor.levels.push_back(bias_level("same_keys", BiasKind::kSameDtype, "b11k", true));
    factor.levels.push_back(bias_level("fp32_rows", BiasKind::kFloat32, "bhq1", true));
    factor.levels.push_back(bias_level("fp32_one", BiasKind::kFloat32, "1111", true));
  }
  return factor;
}

CaseFactor sinks_factor(bool backward) {
  CaseFactor factor{"sinks",
                    {{"none", [](Draft&) {}}, {"given", [](Draft& d) { d.c.sinks = true; }}}};
  if (backward) {
    factor.levels.push_back({"gradient", [](Draft& d) { d.c.sinks = d.c.dsinks = true; }});
  }
  return factor;
}

CaseFactor alibi_factor() {
  return {"alibi",
          {{"none", [](Draft&) {}},
           {"heads", [](Draft& d) { d.c.alibi = AlibiKind::kHeads; }},
           {"batch_heads", [](Draft& d) { d.c.alibi = AlibiKind::kBatchHeads; }}}};
}

CaseFactor dropout_factor() {
  return {"dropout",
          {{"none", [](Draft&) {}},
           {"tenth", [](Draft& d) { d.c.dropout = 0.1f; }},
           {"half", [](Draft& d) { d.c.dropout = 0.5f; }},
           {"all", [](Draft& d) { d.c.dropout = 1.0f; }}}};
}

CaseFactor layout_factor(std::string name, Layout Case::*field, bool shared) {
  constexpr std::pair<const char*, Layout> kLayouts[] = {
      {"bshd", Layout::kBshd},
      {"bhsd", Layout::kBhsd},
      {"packed_slice", Layout::kPackedSlice},
      {"dim_outermost", Layout::kDimOutermost},
      {"reversed", Layout::kReversed},
      {"misaligned", Layout::kMisaligned},
      {"padded", Layout::kPadded},
      {"odd_unit_strides", Layout::kOddUnitStrides},
      {"expanded_heads", Layout::kExpandedHeads},
      {"expanded_batch", Layout::kExpandedBatch},
      {"expanded_all", Layout::kExpandedAll}};
  CaseFactor factor{std::move(name), {}};
  for (const auto& [level, layout] : kLayouts) {
    if (!shared && shares_memory(layout)) continue;
    factor.levels.push_back({level, [field, value = layout](Draft& d) { d.c.*field = value; }});
  }
  return factor;
}

CaseFactor lse_factor() {
  return {"lse", {{"yes", [](Draft&) {}}, {"no", [](Draft& d) { d.c.lse = false; }}}};
}

CaseFactor scale_factor() {
  return {"scale",
          {{"default", [](Draft&) {}},
           {"0.3", [](Draft& d) { d.c.scale = 0.3f; }},
           {"negative", [](Draft& d) { d.c.scale = -0.2f; }}}};
}

CaseFactor threads_factor() {
  return numbers("threads", {1, 2, 3, 8},
                 [](Draft& d, std::int64_t value) { d.c.num_threads = value; });
}

CaseFactor poison_factor() {
  return {"poison",
          {{"nan", [](Draft&) {}},
           {"inf", [](Draft& d) { d.c.poison = Poison::kInfinity; }},
           {"huge", [](Draft& d) { d.c.poison = Poison::kHuge; }}}};
}

CaseFactor slack_factor() {
  return {"slack", {{"some", [](Draft&) {}}, {"none", [](Draft& d) { d.slack = false; }}}};
}

CaseFactor gradients_factor() {
  const auto only = [](bool dq, bool dk, bool dv) {
    return [=](Draft& d) {
      d.c.dq = dq;
      d.c.dk = dk;
      d.c.dv = dv;
    };
  };
  return {"gradients",
          {{"all", only(true, true, true)},
           {"dq", only(true, false, false)},
           {"dk", only(false, true, false)},
           {"dv", only(false, false, true)}}};
}

CaseFactor append_storage_factor() {
  CaseFactor factor{"storage",
                    {storage_level("append_cache", QForm::kDense, KForm::kCache),
                     storage_level("append_cache_rows", QForm::kUsed, KForm::kCache,
                                   [](Draft& d) { d.c.cache_batch_idx = true; }),
                     storage_level("append_leftpad", QForm::kPacked, KForm::kCache,
                                   [](Draft& d) { d.c.leftpad = 9; })}};
  for (const std::int64_t page_size : {1, 4, 16, 48, 64}) {
    factor.levels.push_back(storage_level("append_paged_" + std::to_string(page_size),
                                          page_size == 16 ? QForm::kPackedUsed : QForm::kDense,
                                          KForm::kPaged,
                                          [page_size](Draft& d) { d.c.page_size = page_size; }));
  }
  return factor;
}

}  // namespace foveal::test
