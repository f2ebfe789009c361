#include "cpu/fwd/kernel.hpp"

#include <algorithm>

#include "algorithm/block_range.hpp"
#include "algorithm/online_softmax.hpp"
#include "cpu/fwd/epilogue.hpp"
#include "cpu/fwd/stream.hpp"
#include "cpu/score_products.hpp"

namespace foveal::cpu {
namespace {

using algorithm::BlockRange;
using algorithm::KvLocator;
using algorithm::Range;
using algorithm::SoftmaxState;

RowLoader loader(const TileMath& math, const TensorSpec& spec, const void* data) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return {&math, data, spec.dtype, spec.strides[last], spec.shape[last]};
}

/// Where one head's tile reads its keys and values.
struct KeySource {
  KvLocator k;
  KvLocator v;
  Range seen;  ///< keys that some row of the tile sees
};

KeySource key_source(const ForwardArgs& args, const algorithm::SeqlenInfo& info, std::int64_t b,
                     std::int64_t head_k, Range seen) {
  const std::int64_t row = cache_row(args.context.tensors, b);
  const std::int64_t first_row = info.k_begin + info.leftpad_k;
  return {algorithm::kv_locator(args.k_layout, b, row, head_k, first_row),
          algorithm::kv_locator(args.v_layout, b, row, head_k, first_row), seen};
}

/// A part of a tile against one block of keys.
struct KeyBlock {
  ScoreTile tile;  ///< rows: those of the part
  bool needs_mask = false;
  const KeySource& next;  ///< what is read after this block: these keys of the same head or another
  Range next_keys;
};

/// q . k^T of the tile from k loaded and packed.
void multiply_products(const ForwardArgs& args, const ForwardScratch& scratch,
                       const KeySource& source, const KeyBlock& block) {
  const KeyRows keys{args.k, source.k, block.tile.keys, source.seen};
  const KeyRows next{args.v, source.v, block.tile.keys, source.seen};
  const std::int64_t depth = args.math->slots(args.geometry.headdim);
  load_key_rows(keys, next, scratch.rows, scratch.ld_d);
  args.math->pack(scratch.rows, scratch.ld_d, keys.keys.size(), depth, scratch.right);
  multiply_scores(*args.math, {block.tile, block.needs_mask},
                  {.rows = block.tile.rows.packed.size(),
                   .columns = keys.keys.size(),
                   .depth = depth,
                   .a = scratch.q,
                   .lda = scratch.ld_d,
                   .b = scratch.right,
                   .c = scratch.scores,
                   .ldc = scratch.ld_n});
}

/// Scores become weights, exp(score - row_max); sums and accumulator move to the new maximum.
void update_softmax(const ForwardArgs& args, const ForwardScratch& scratch, const ScoreTile& tile) {
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  const std::int64_t acc_columns = round_up(args.geometry.headdim_v, kLane);
  const float factor = args.score.exp_factor();
  for (std::int64_t row = 0; row < tile.rows.packed.size(); ++row) {
    SoftmaxState& state = scratch.state[row];
    float* scores = scratch.scores + row * scratch.ld_n;
    const float new_max = max_of(state.row_max, factor * args.math->row_max(scores, columns));
    const float rescale = algorithm::rescale_factor(state.row_max, new_max);
    if (rescale != 1.0f) args.math->scale(scratch.acc + row * scratch.ld_dv, acc_columns, rescale);
    const float sum =
        args.math->exp_sum(scores, columns, factor, algorithm::softmax_offset(new_max));
    state.row_sum = state.row_sum * rescale + sum;
    state.row_max = new_max;
  }
}

/// After the sums, which count what dropout drops.
void drop_weights(const ForwardArgs& args, const ForwardScratch& scratch, const ScoreTile& tile) {
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  for (std::int64_t r = tile.rows.packed.min; r < tile.rows.packed.max; ++r) {
    float* weights = scratch.scores + (r - tile.rows.packed.min) * scratch.ld_n;
    dropout_factors(args.score, tile, r, scratch.factors);
    for (std::int64_t j = 0; j < columns; ++j) weights[j] *= scratch.factors[j];
  }
}

/// The weights as an operand.
void narrow_weights(const ForwardArgs& args, const ForwardScratch& scratch, const ScoreTile& tile) {
  if (args.math->narrow == nullptr) return;
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  for (std::int64_t row = 0; row < tile.rows.packed.size(); ++row) {
    args.math->narrow(scratch.scores + row * scratch.ld_n, columns,
                      slot_at(scratch.weights, row * scratch.ld_w));
  }
}

/// Products of the tile with one block of keys become weights of its values.
void weigh(const ForwardArgs& args, const ForwardScratch& scratch, const ScoreTile& tile,
           bool needs_mask) {
  scale_and_cap(args.score, tile, scratch.scores, scratch.ld_n);
  bias_and_mask(args.score, tile, needs_mask, scratch.scores, scratch.ld_n);
  update_softmax(args, scratch, tile);
  if (args.score.dropout.enabled()) drop_weights(args, scratch, tile);
  narrow_weights(args, scratch, tile);
}

/// acc += weights . v from v loaded.
void accumulate_values(const ForwardArgs& args, const ForwardScratch& scratch,
                       const KeySource& source, const KeyBlock& block) {
  const KeyRows keys{args.v, source.v, block.tile.keys, source.seen};
  const KeyRows next{args.k, block.next.k, block.next_keys, block.next.seen};
  const std::int64_t rows = block.tile.rows.packed.size();
  const std::int64_t headdim_v = args.geometry.headdim_v;
  const std::int64_t ld = tile_ld(args.math->slots(headdim_v));
  load_key_rows(keys, next, scratch.rows, ld);
  const void* values = scratch.rows;
  if (args.math->pair_rows != nullptr) {
    args.math->pair_rows(scratch.rows, ld, keys.keys.size(), round_up(headdim_v, kLane),
                         scratch.right, scratch.ld_dv);
    values = scratch.right;
  }
  accumulate_over_keys(*args.math, {block.tile, block.needs_mask},
                       {.rows = rows,
                        .columns = headdim_v,
                        .a = scratch.weights,
                        .lda = scratch.ld_w,
                        .b = values,
                        .ldb = scratch.ld_dv,
                        .c = scratch.acc,
                        .ldc = scratch.ld_dv});
}

void begin_tile(const ForwardArgs& args, const ForwardScratch& scratch, const QueryTile& rows) {
  load_query_rows(args.q, args.q_strides, rows, scratch.q, scratch.ld_d);
  std::fill_n(scratch.acc, rows.packed.size() * scratch.ld_dv, 0.0f);
  std::fill_n(scratch.state, rows.packed.size(), SoftmaxState{});
}

/// Leaves those rows of the tile that see some key of a block, which is all that the block is for.
void keep_seeing_rows(ScoreTile& tile) {
  const Range rows = tile.mask.rows_of_keys(tile.keys);
  const std::int64_t group = tile.rows.group;
  tile.rows.packed = algorithm::intersect(tile.rows.packed, {rows.min * group, rows.max * group});
}

}  // namespace

ForwardArgs::ForwardArgs(const planner::LaunchContext& launch, const ForwardPartials& split_results)
    : context(launch),
      geometry(launch.geometry),
      tile(launch.config.tile),
      math(&tile_math(launch.problem.q.dtype, launch.config.isa)),
      score(score_options(*math, launch.problem, launch.geometry, launch.tensors)),
      lengths(seqlen_source(launch.problem, launch.geometry, launch.tensors)),
      k_layout(kv_layout(launch.problem, launch.geometry, launch.problem.k, launch.tensors)),
      v_layout(kv_layout(launch.problem, launch.geometry, launch.problem.v, launch.tensors)),
      q(loader(*math, launch.problem.q, launch.tensors.q)),
      k(loader(*math, launch.problem.k, launch.tensors.k)),
      v(loader(*math, launch.problem.v, launch.tensors.v)),
      can_stream(k.stride == 1 && v.stride == 1 && k.count % kLane == 0 && v.count % kLane == 0),
      q_strides(row_strides(launch.problem.q)),
      out_strides(row_strides(launch.problem.out)),
      partials(split_results) {
  out = {math, launch.tensors.out, launch.problem.out.dtype, out_strides.dim, geometry.headdim_v};
  if (launch.problem.lse.present()) {
    lse = launch.tensors.lse;
    lse_strides = foveal::lse_strides(launch.problem.lse);
  }
  if (launch.problem.sinks.present()) {
    sinks = launch.tensors.sinks;
    sink_stride = launch.problem.sinks.strides[0];
  }
}

namespace {

/// What the heads of an item have in common.
struct ItemWork {
  const ForwardArgs& args;
  const WorkItem& item;
  algorithm::SeqlenInfo info;
  algorithm::Mask mask;
  Range packed;   ///< packed rows of the tile below seqlen_q
  Range padding;  ///< and those at and past it
  BlockRange blocks;
  Range split;  ///< blocks of the item
  Range seen;   ///< keys that some row of the tile sees

  ItemWork(const ForwardArgs& arguments, const WorkItem& work);

  [[nodiscard]] ForwardTile tile(std::int64_t head) const {
    return {
        {item.sequence->b, info.q_begin, item.head_k + head, args.geometry.qhead_per_khead, packed},
        padding};
  }
  [[nodiscard]] KeySource source(std::int64_t head) const {
    return key_source(args, info, item.sequence->b, item.head_k + head, seen);
  }
  [[nodiscard]] Range keys_of_block(std::int64_t n_block) const {
    if (n_block >= split.max) return {};
    return {n_block * args.tile.n, min_of((n_block + 1) * args.tile.n, info.seqlen_k)};
  }
  [[nodiscard]] Range keys_of_split() const {
    return {split.min * args.tile.n, min_of(split.max * args.tile.n, info.seqlen_k)};
  }
  /// The tiles of several heads share a scratch tile: those of a few rows only are taken together.
  [[nodiscard]] std::int64_t head_rows() const { return padding.max - packed.min; }
  [[nodiscard]] ForwardScratch scratch_of(const ForwardScratch& scratch, std::int64_t head) const {
    return scratch.rows_from(head * head_rows());
  }
  /// Whether k and v are read where they lie; by the sequence's rows alone, so that bits don't hang
  /// on the batch.
  [[nodiscard]] bool streams() const {
    return args.can_stream && info.seqlen_q * args.geometry.qhead_per_khead <= kMaxStreamedRows;
  }
  /// The tile of the item's first head against one block, with the rows that see some of it.
  [[nodiscard]] ScoreTile score_tile(std::int64_t n_block) const {
    ScoreTile score{tile(0).rows, mask, keys_of_block(n_block)};
    if (blocks.needs_mask(n_block)) keep_seeing_rows(score);
    return score;
  }
};

ItemWork::ItemWork(const ForwardArgs& arguments, const WorkItem& work)
    : args(arguments),
      item(work),
      info(algorithm::seqlen_info(args.lengths, item.sequence->b)),
      mask(sequence_mask(info, args.geometry)) {
  const std::int64_t group = args.geometry.qhead_per_khead;
  const std::int64_t begin = item.m_block * args.tile.m;
  const std::int64_t capacity = min_of(begin + args.tile.m, info.capacity_q * group);
  const std::int64_t end = clamp_to(info.seqlen_q * group, begin, capacity);
  packed = {begin, end};
  padding = {end, capacity};
  if (packed.empty()) return;
  const Range rows = algorithm::query_rows(packed, group);
  blocks = algorithm::n_block_range(mask, rows, args.tile.n);
  split = blocks_of_split(blocks.visit, item.split, item.sequence->num_splits, args.context.config);
  seen = mask.keys_of_rows(rows);
}

/// One block of keys for all heads of the item, head by head.
void attend_block(const ItemWork& work, const ForwardScratch& scratch, std::int64_t n_block) {
  const ForwardArgs& args = work.args;
  ScoreTile tile = work.score_tile(n_block);
  if (tile.rows.packed.empty()) return;
  const std::int64_t first_row = tile.rows.packed.min - work.packed.min;
  KeySource source = work.source(0);
  for (std::int64_t head = 0; head < work.item.num_heads; ++head, ++tile.rows.head_k) {
    const bool last = head + 1 == work.item.num_heads;
    const KeySource next = work.source(last ? 0 : head + 1);
    const ForwardScratch part = work.scratch_of(scratch, head).rows_from(first_row);
    const KeyBlock block{tile, work.blocks.needs_mask(n_block), next,
                         work.keys_of_block(last ? n_block + 1 : n_block)};
    multiply_products(args, part, source, block);
    weigh(args, part, tile, block.needs_mask);
    accumulate_values(args, part, source, block);
    source = next;
  }
}

/// All keys of the item with k and v read where they lie, some keys of every head in turn.
void stream_keys(const ItemWork& work, const ForwardScratch& scratch) {
  const ForwardArgs& args = work.args;
  const KeySource source = work.source(0);
  const Range keys = algorithm::intersect(work.keys_of_split(), source.seen);
  const std::int64_t heads = work.item.num_heads;
  KvStream stream(*args.math, {args.k, source.k, keys, keys}, {args.v, source.v, keys, keys}, heads,
                  scratch);
  while (stream.advance()) {
    ScoreTile tile{work.tile(0).rows, work.mask, stream.keys()};
    const bool needs_mask = work.blocks.needs_mask(tile.keys.min / args.tile.n);
    if (needs_mask) keep_seeing_rows(tile);
    const std::int64_t rows = tile.rows.packed.size();
    if (rows == 0) continue;
    const ForwardScratch part = scratch.rows_from(tile.rows.packed.min - work.packed.min);
    for (std::int64_t head = 0; head < heads; ++head) {
      stream.multiply(work.scratch_of(part, head), rows, head);
    }
    for (std::int64_t head = 0; head < heads; ++head, ++tile.rows.head_k) {
      weigh(args, work.scratch_of(part, head), tile, needs_mask);
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      stream.accumulate(work.scratch_of(part, head), rows, head);
    }
  }
}

}  // namespace

void attend(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item) {
  const ItemWork work(args, item);
  if (work.packed.empty()) {
    for (std::int64_t head = 0; head < item.num_heads; ++head) {
      store_padding(args, scratch, work.tile(head));
    }
    return;
  }
  for (std::int64_t head = 0; head < item.num_heads; ++head) {
    begin_tile(args, work.scratch_of(scratch, head), work.tile(head).rows);
  }
  if (work.streams()) {
    stream_keys(work, scratch);
  } else {
    for (std::int64_t n_block = work.split.min; n_block < work.split.max; ++n_block) {
      attend_block(work, scratch, n_block);
    }
  }
  for (std::int64_t head = 0; head < item.num_heads; ++head) {
    WorkItem one = item;
    one.head_k += head;
    store_tile(args, work.scratch_of(scratch, head), one, work.tile(head));
  }
}

}  // namespace foveal::cpu
