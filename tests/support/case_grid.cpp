#include "support/case_grid.hpp"

#include <algorithm>

#include "support/built_case.hpp"
#include "support/covering_array.hpp"
#include "support/operand_layout.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

/// Pairs times head size beyond which a case loses sequences and heads: a second of the reference.
constexpr double kMaxWork = 4e7;

/// Lengths of the sequences after the first: none, one token, half, all.
std::int64_t ragged(std::int64_t length, std::int64_t b, std::uint64_t seed) {
  if (b == 0) return length;
  const std::int64_t choices[] = {0, 1, length / 2, length};
  return choices[derive_seed(seed, static_cast<std::uint64_t>(b)) % 4];
}

bool ragged_q(const Case& c) { return c.q_form != QForm::kDense; }
bool ragged_k(const Case& c) { return c.k_form != KForm::kDense; }

void limit_work(Case& c) {
  while (c.work() > kMaxWork) {
    if (c.lens.size() > 1) {
      c.lens.pop_back();
    } else if (c.nheads_k > 1) {
      --c.nheads_k;
    } else if (c.lens[0].q > 17) {
      c.lens[0].q = c.lens[0].q / 2 + 1;
    } else {
      return;
    }
  }
}

void fit_rotary(Case& c, bool partial) {
  if (c.rotary == Rotary::kNone) return;
  const std::int64_t room = partial ? std::max<std::int64_t>(c.headdim / 2, 2) : c.headdim;
  c.rotary_dim = room / 2 * 2;
  if (c.headdim < 2) {
    c.rotary = Rotary::kNone;
    c.rotary_dim = 0;
    c.rotary_fp32 = false;
  }
}

std::vector<CaseDraft> with_levels(const std::vector<CaseFactor>& factors,
                                   const std::vector<DesignRow>& rows, Pass pass) {
  std::vector<CaseDraft> drafts;
  for (const DesignRow& row : rows) {
    CaseDraft draft;
    draft.c.pass = pass;
    for (std::size_t factor = 0; factor < factors.size(); ++factor) {
      factors[factor].levels[row[factor]].apply(draft);
    }
    drafts.push_back(draft);
  }
  return drafts;
}

}  // namespace

Case finish_case(CaseDraft draft, std::uint64_t seed) {
  Case& c = draft.c;
  c.seed = seed;
  c.slack_q = draft.slack ? 3 : 0;
  c.slack_k = draft.slack ? 7 : 0;
  if (!ragged_q(c) || c.pass == Pass::kMerge) c.slack_q = 0;
  if (!ragged_k(c) || c.pass == Pass::kMerge) c.slack_k = 0;
  if (c.q_form == QForm::kPacked) c.slack_q = 0;
  if (c.k_form == KForm::kPacked) c.slack_k = 0;
  if (!c.packed_q() && !c.packed_k()) c.loose_max_seqlen = false;
  c.lens.clear();
  for (std::int64_t b = 0; b < draft.batch; ++b) {
    const std::int64_t q = ragged_q(c) ? ragged(draft.seqlen_q, b, seed) : draft.seqlen_q;
    const std::int64_t k = ragged_k(c) ? ragged(draft.seqlen_k, b, seed + 1) : draft.seqlen_k;
    c.lens.push_back({q, std::max(k, c.append)});
  }
  fit_rotary(c, draft.rotary_partial);
  limit_work(c);
  return c;
}

std::vector<Case> grid_cases(Pass pass) {
  const std::vector<CaseFactor> factors = case_factors(pass);
  std::vector<std::size_t> num_levels;
  for (const CaseFactor& factor : factors) num_levels.push_back(factor.levels.size());
  const auto meet = [&](std::size_t fa, std::size_t a, std::size_t fb, std::size_t b) {
    return levels_meet(factors[fa], factors[fa].levels[a], factors[fb], factors[fb].levels[b]);
  };
  const std::vector<DesignRow> rows =
      covering_array(num_levels, meet, static_cast<std::uint64_t>(pass) + 1);
  std::vector<Case> cases;
  std::uint64_t seed = 0;
  for (const CaseDraft& draft : with_levels(factors, rows, pass)) {
    cases.push_back(finish_case(draft, ++seed));
  }
  return cases;
}

Case random_case(Pass pass, std::uint64_t seed) {
  const std::vector<CaseFactor> factors = case_factors(pass);
  Random random(derive_seed(seed, 77));
  const auto any_level = [&](const CaseFactor& factor) {
    return static_cast<std::size_t>(
        random.integer(0, static_cast<std::int64_t>(factor.levels.size()) - 1));
  };
  DesignRow row(factors.size());
  for (std::size_t factor = 0; factor < factors.size(); ++factor) {
    const auto fits = [&](std::size_t level) {
      for (std::size_t other = 0; other < factor; ++other) {
        if (!levels_meet(factors[factor], factors[factor].levels[level], factors[other],
                         factors[other].levels[row[other]])) {
          return false;
        }
      }
      return true;
    };
    // A third of the features is on at a time; the first level is the plain one.
    const bool feature = factors[factor].levels.size() <= 11 && factor > 4;
    row[factor] = feature && !random.chance(0.4) ? 0 : any_level(factors[factor]);
    while (!fits(row[factor])) row[factor] = any_level(factors[factor]);
  }
  CaseDraft draft = with_levels(factors, {row}, pass).front();
  // Lengths and widths between the levels as well.
  if (random.chance(0.5)) draft.seqlen_q = random.integer(0, draft.seqlen_q);
  if (random.chance(0.5)) draft.seqlen_k = random.integer(0, draft.seqlen_k);
  if (random.chance(0.3)) draft.c.headdim = random.integer(1, draft.c.headdim);
  return finish_case(draft, seed);
}

std::vector<Case> simpler_cases(const Case& c) {
  std::vector<Case> candidates;
  const auto offer = [&](auto&& change) {
    Case simpler = c;
    change(simpler);
    if (simpler != c && illegal_reason(simpler).empty()) candidates.push_back(simpler);
  };
  if (!c.lens.empty()) {
    offer([](Case& s) { s.lens.pop_back(); });
    offer([](Case& s) { s.lens.erase(s.lens.begin()); });
  }
  for (std::int64_t SeqLens::*length : {&SeqLens::q, &SeqLens::k}) {
    offer([&](Case& s) {
      for (SeqLens& lens : s.lens) lens.*length /= 2;
    });
    offer([&](Case& s) {
      for (SeqLens& lens : s.lens) lens.*length = std::max<std::int64_t>(lens.*length - 1, 0);
    });
  }
  offer([](Case& s) { s.group = 1; });
  offer([](Case& s) { s.nheads_k = 1; });
  offer([](Case& s) { s.headdim = std::max<std::int64_t>(s.headdim / 2, 1); });
  offer([](Case& s) { s.num_threads = 1; });
  offer([](Case& s) { s.q_layout = s.kv_layout = s.out_layout = Layout::kBshd; });
  offer([](Case& s) { s.q_layout = Layout::kBshd; });
  offer([](Case& s) { s.kv_layout = Layout::kBshd; });
  offer([](Case& s) { s.out_layout = Layout::kBshd; });
  offer([](Case& s) { s.bias = BiasKind::kNone, s.dbias = false, s.bias_shape = "bhqk"; });
  offer([](Case& s) { s.alibi = AlibiKind::kNone; });
  offer([](Case& s) { s.dropout = 0; });
  offer([](Case& s) { s.softcap = 0; });
  offer([](Case& s) { s.sinks = s.dsinks = false; });
  offer([](Case& s) { s.dlse = false; });
  offer([](Case& s) { s.window_left = s.window_right = -1; });
  offer([](Case& s) { s.causal = false; });
  offer([](Case& s) { s.scale = 0; });
  offer([](Case& s) { s.rotary = Rotary::kNone, s.rotary_dim = 0; });
  offer([](Case& s) { s.append = 0, s.rotary = Rotary::kNone, s.rotary_dim = 0; });
  offer([](Case& s) { s.slack_q = s.slack_k = 0; });
  offer([](Case& s) { s.leftpad = 0; });
  offer([](Case& s) { s.cache_batch_idx = false; });
  offer([](Case& s) { s.q_form = QForm::kDense, s.slack_q = 0; });
  offer([](Case& s) { s.k_form = KForm::kDense, s.slack_k = 0, s.leftpad = 0; });
  offer([](Case& s) { s.fp32_out = s.fp32_grads = false; });
  offer([](Case& s) { s.batch_invariant = s.deterministic = s.loose_max_seqlen = false; });
  offer([](Case& s) { s.poison = Poison::kZero; });
  return candidates;
}

}  // namespace foveal::test
