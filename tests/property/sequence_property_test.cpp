// Sequences do not know of one another, nor of how they are stored.
#include "property/property_case.hpp"

namespace foveal::test {
namespace {

/// Documents in another order; a sequence's dropout hangs on its place in the batch.
void permuted(Pass pass, bool batch_invariant) {
  const Case c = *any_case(pass, [=](Case& draft) {
    without_append(draft);
    without_bias(draft);
    draft.q_form = QForm::kPacked;
    draft.k_form = KForm::kPacked;
    draft.slack_q = draft.slack_k = draft.leftpad = 0;
    draft.cache_batch_idx = false;
    draft.dropout = 0;
    draft.batch_invariant = draft.deterministic = batch_invariant;
    draft.dsinks = false;
    if (!draft.dq && !draft.dk && !draft.dv) draft.dq = true;
    if (shares_all(draft)) draft.q_layout = draft.kv_layout = Layout::kBshd;
    while (draft.lens.size() < 3) draft.lens.push_back({5, 9});
  });
  const std::int64_t last = c.batch() - 1;
  Case reversed_case = c;
  std::reverse(reversed_case.lens.begin(), reversed_case.lens.end());
  BuiltCase straight(c);
  BuiltCase reversed(reversed_case);
  SequenceCopy{straight, reversed, [last](std::int64_t b) { return last - b; }}.all();
  run_or_discard(straight);
  run_or_discard(reversed);
  const SequenceComparison compare{straight, reversed,
                                   batch_invariant ? Match::kBits : Match::kRounded};
  for (std::int64_t b = 0; b <= last; ++b) compare.sequence(b, last - b);
}

FOVEAL_PROPERTY(DocumentOrder, ForwardFollowsBitByBit) { permuted(Pass::kForward, true); }
FOVEAL_PROPERTY(DocumentOrder, ForwardFollows) { permuted(Pass::kForward, false); }
FOVEAL_PROPERTY(DocumentOrder, BackwardFollowsBitByBit) { permuted(Pass::kBackward, true); }
FOVEAL_PROPERTY(DocumentOrder, BackwardFollows) { permuted(Pass::kBackward, false); }

/// A sequence alone has the bits that it has in a batch, with any number of threads.
void alone(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    without_bias(draft);
    draft.dropout = 0;
    draft.batch_invariant = draft.deterministic = true;
    draft.dsinks = false;
    draft.cache_batch_idx = false;
    draft.leftpad = 0;
    if (!draft.dq && !draft.dk && !draft.dv) draft.dv = true;
    if (shares_all(draft)) draft.q_layout = draft.kv_layout = Layout::kBshd;
    if (draft.lens.empty()) draft.lens = {{4, std::max<std::int64_t>(7, draft.append)}};
  });
  BuiltCase batch(c);
  run_or_discard(batch);
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    Case one = c;
    one.lens = {c.lens[static_cast<std::size_t>(b)]};
    one.num_threads = c.num_threads % 3 + 1;
    BuiltCase single(one);
    batch.bench.restore();
    SequenceCopy{batch, single, [b](std::int64_t) { return b; }}.all();
    const Status status = batch.run();
    if (!status) RC_FAIL(status.message());
    run_or_discard(single);
    SequenceComparison{batch, single}.sequence(b, 0);
  }
}

FOVEAL_PROPERTY(BatchInvariance, ForwardOfASequenceAlone) { alone(Pass::kForward); }
FOVEAL_PROPERTY(BatchInvariance, BackwardOfASequenceAlone) { alone(Pass::kBackward); }

/// One problem stored in two ways.
void stored_as(const Case& c, const Case& other, Match match) {
  RC_PRE(illegal_reason(c).empty() && illegal_reason(other).empty());
  BuiltCase a(c);
  BuiltCase b(other);
  SequenceCopy{a, b}.all();
  run_or_discard(a);
  run_or_discard(b);
  SequenceComparison{a, b, match}.all();
}

void head_major(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    draft.q_layout = draft.kv_layout = draft.out_layout = Layout::kBshd;
  });
  Case other = c;
  other.q_layout = other.kv_layout = other.out_layout = Layout::kBhsd;
  stored_as(c, other, match_of(c));
}

FOVEAL_PROPERTY(Storage, ForwardHeadMajorIsSequenceMajor) { head_major(Pass::kForward); }
FOVEAL_PROPERTY(Storage, BackwardHeadMajorIsSequenceMajor) { head_major(Pass::kBackward); }

FOVEAL_PROPERTY(Storage, PagedIsContiguous) {
  const Case c = *any_case(Pass::kForward, [](Case& draft) {
    draft.k_form = KForm::kPaged;
    draft.cache_batch_idx = false;
    if (draft.packed_q()) without_bias(draft);
    // A bias spans the capacity, which pages round up.
    if (draft.bias != BiasKind::kNone) draft.bias_shape.back() = '1';
    if (shares_all(draft)) draft.q_layout = draft.kv_layout = Layout::kBshd;
  });
  Case cache = c;
  cache.k_form = KForm::kCache;
  cache.slack_k = 0;
  cache.slack_k = dense_rows_k(c) - dense_rows_k(cache);  // the same capacity, so the same plan
  stored_as(c, cache, match_of(c));
}

void packed_or_padded(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    without_append(draft);
    without_bias(draft);
    draft.q_form = QForm::kPacked;
    draft.k_form = KForm::kPacked;
    draft.slack_q = draft.slack_k = 0;
    draft.cache_batch_idx = false;
    draft.batch_invariant = draft.deterministic = true;
    if (shares_all(draft)) draft.q_layout = draft.kv_layout = Layout::kBshd;
  });
  Case padded = c;
  padded.q_form = QForm::kUsed;
  padded.k_form = KForm::kCache;
  padded.slack_q = 2;
  padded.slack_k = 5;
  padded.loose_max_seqlen = false;
  stored_as(c, padded, Match::kRounded);
}

FOVEAL_PROPERTY(Storage, ForwardPackedIsPadded) { packed_or_padded(Pass::kForward); }
FOVEAL_PROPERTY(Storage, BackwardPackedIsPadded) { packed_or_padded(Pass::kBackward); }

FOVEAL_PROPERTY(Storage, AppendAndAttendIsAttendOverBoth) {
  const Case c = *any_case(Pass::kForward, [](Case& draft) {
    draft.k_form = draft.k_form == KForm::kPaged ? KForm::kPaged : KForm::kCache;
    if (draft.packed_q()) without_bias(draft);
    without_rotary(draft);
    draft.append = draft.append % 3 + 1;
    draft.kv_layout = Layout::kBshd;
    for (SeqLens& lens : draft.lens) lens.k = std::max(lens.k, draft.append);
  });
  Case whole = c;
  whole.append = 0;
  stored_as(c, whole, match_of(c));
}

}  // namespace
}  // namespace foveal::test
