#include "cpu/fwd/kernel.hpp"

#include <algorithm>

#include "algorithm/block_range.hpp"
#include "algorithm/online_softmax.hpp"
#include "cpu/fwd/epilogue.hpp"

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

/// Where one tile reads its keys and values.
struct KeySource {
  KvLocator k;
  KvLocator v;
  Range seen;     ///< keys that some row of the tile sees
  bool streamed;  ///< read where they lie; by the sequence's rows alone, so that bits don't hang on
                  ///< the batch
};

KeySource key_source(const ForwardArgs& args, const WorkItem& item,
                     const algorithm::SeqlenInfo& info, Range seen) {
  const std::int64_t b = item.sequence->b;
  const std::int64_t row = cache_row(args.context.tensors, b);
  const std::int64_t first_row = info.k_begin + info.leftpad_k;
  return {algorithm::kv_locator(args.k_layout, b, row, item.head_k, first_row),
          algorithm::kv_locator(args.v_layout, b, row, item.head_k, first_row), seen,
          args.can_stream && info.seqlen_q * args.geometry.qhead_per_khead <= kMaxStreamedRows};
}

/// q . k^T of the tile from rows of k in memory. Keys that no row sees are not read; their products
/// are 0.
void stream_products(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& keys,
                     const KeyRows& next, std::int64_t rows) {
  const std::int64_t ld = tile_ld(args.tile.n);
  const Range read = keys.read();
  locate_key_rows(keys, scratch.key_rows);
  locate_key_rows(next, scratch.next_rows);
  if (read.size() < args.tile.n) std::fill_n(scratch.scores, rows * ld, 0.0f);
  if (read.empty()) return;
  args.math->multiply_memory({.rows = rows,
                              .a = scratch.q,
                              .lda = tile_ld(args.geometry.headdim),
                              .c = scratch.scores + (read.min - keys.keys.min),
                              .ldc = ld},
                             {.rows = scratch.key_rows,
                              .count = read.size(),
                              .columns = args.geometry.headdim,
                              .dtype = keys.loader.dtype,
                              .ahead = scratch.next_rows,
                              .num_ahead = next.read().size()});
}

/// acc += weights . v from rows of v in memory.
void stream_values(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& keys,
                   const KeyRows& next, std::int64_t rows) {
  const Range read = keys.read();
  if (read.empty()) return;
  locate_key_rows(keys, scratch.key_rows);
  locate_key_rows(next, scratch.next_rows);
  args.math->accumulate_memory({.rows = rows,
                                .a = scratch.scores + (read.min - keys.keys.min),
                                .lda = tile_ld(args.tile.n),
                                .c = scratch.acc,
                                .ldc = tile_ld(args.geometry.headdim_v)},
                               {.rows = scratch.key_rows,
                                .count = read.size(),
                                .columns = args.geometry.headdim_v,
                                .dtype = keys.loader.dtype,
                                .ahead = scratch.next_rows,
                                .num_ahead = next.read().size()});
}

/// q . k^T of the tile from k loaded and packed.
void multiply_products(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& keys,
                       const KeyRows& next, std::int64_t rows) {
  const std::int64_t headdim = args.geometry.headdim;
  const std::int64_t ld = tile_ld(headdim);
  load_key_rows(keys, next, scratch.kv, ld);
  args.math->pack(scratch.kv, ld, keys.keys.size(), headdim, scratch.packed);
  args.math->multiply_packed({.rows = rows,
                              .columns = keys.keys.size(),
                              .depth = headdim,
                              .a = scratch.q,
                              .lda = ld,
                              .b = scratch.packed,
                              .c = scratch.scores,
                              .ldc = tile_ld(args.tile.n)});
}

/// Scores of the tile against one block of keys, masked.
void compute_scores(const ForwardArgs& args, const ForwardScratch& scratch, const KeySource& source,
                    const ScoreTile& tile, bool needs_mask) {
  const std::int64_t scores_ld = tile_ld(args.tile.n);
  const auto products = source.streamed ? stream_products : multiply_products;
  products(args, scratch, {args.k, source.k, tile.keys, source.seen},
           {args.v, source.v, tile.keys, source.seen}, tile.rows.packed.size());
  scale_and_cap(args.score, tile, scratch.scores, scores_ld);
  bias_and_mask(args.score, tile, needs_mask, scratch.scores, scores_ld);
}

/// Scores become weights, exp(score - row_max); sums and accumulator move to the new maximum.
void update_softmax(const ForwardArgs& args, const ForwardScratch& scratch, std::int64_t rows,
                    std::int64_t columns) {
  const std::int64_t acc_ld = tile_ld(args.geometry.headdim_v);
  const std::int64_t acc_columns = round_up(args.geometry.headdim_v, kLane);
  for (std::int64_t row = 0; row < rows; ++row) {
    SoftmaxState& state = scratch.state[row];
    float* scores = scratch.scores + row * tile_ld(args.tile.n);
    const float new_max = max_of(state.row_max, args.math->row_max(scores, columns));
    const float factor = algorithm::rescale_factor(state.row_max, new_max);
    if (factor != 1.0f) args.math->scale(scratch.acc + row * acc_ld, acc_columns, factor);
    const float sum = args.math->exp_sum(scores, columns, algorithm::softmax_offset(new_max));
    state.row_sum = state.row_sum * factor + sum;
    state.row_max = new_max;
  }
}

/// After the sums, which count what dropout drops.
void drop_weights(const ForwardArgs& args, const ForwardScratch& scratch, const ScoreTile& tile) {
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  for (std::int64_t r = tile.rows.packed.min; r < tile.rows.packed.max; ++r) {
    float* weights = scratch.scores + (r - tile.rows.packed.min) * tile_ld(args.tile.n);
    dropout_factors(args.score, tile, r, scratch.factors);
    for (std::int64_t j = 0; j < columns; ++j) weights[j] *= scratch.factors[j];
  }
}

void accumulate_values(const ForwardArgs& args, const ForwardScratch& scratch,
                       const KeySource& source, const ScoreTile& tile, Range next_keys) {
  const KeyRows keys{args.v, source.v, tile.keys, source.seen};
  const KeyRows next{args.k, source.k, next_keys, source.seen};
  if (source.streamed) {
    return stream_values(args, scratch, keys, next, tile.rows.packed.size());
  }
  const std::int64_t headdim_v = args.geometry.headdim_v;
  const std::int64_t ld = tile_ld(headdim_v);
  load_key_rows(keys, next, scratch.kv, ld);
  args.math->accumulate({.rows = tile.rows.packed.size(),
                         .columns = headdim_v,
                         .depth = tile.keys.size(),
                         .a = scratch.scores,
                         .lda = tile_ld(args.tile.n),
                         .b = scratch.kv,
                         .ldb = ld,
                         .c = scratch.acc,
                         .ldc = ld});
}

void begin_tile(const ForwardArgs& args, const ForwardScratch& scratch, const QueryTile& rows) {
  load_query_rows(args.q, args.q_strides, rows, scratch.q, tile_ld(args.geometry.headdim));
  std::fill_n(scratch.acc, rows.packed.size() * tile_ld(args.geometry.headdim_v), 0.0f);
  std::fill_n(scratch.state, rows.packed.size(), SoftmaxState{});
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

void attend(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item) {
  const algorithm::SeqlenInfo info = algorithm::seqlen_info(args.lengths, item.sequence->b);
  const algorithm::Mask mask = sequence_mask(info, args.geometry);
  const std::int64_t group = args.geometry.qhead_per_khead;
  const Range packed{item.m_block * args.tile.m,
                     min_of((item.m_block + 1) * args.tile.m, info.capacity_q * group)};
  const std::int64_t end = clamp_to(info.seqlen_q * group, packed.min, packed.max);
  const ForwardTile tile{{item.sequence->b, info.q_begin, item.head_k, group, {packed.min, end}},
                         {end, packed.max}};
  if (tile.rows.packed.empty()) return store_padding(args, scratch, tile);

  const Range rows = algorithm::query_rows(tile.rows.packed, group);
  const BlockRange blocks = algorithm::n_block_range(mask, rows, args.tile.n);
  const Range split =
      blocks_of_split(blocks.visit, item.split, item.sequence->num_splits, args.context.config);
  const KeySource source = key_source(args, item, info, mask.keys_of_rows(rows));
  const auto keys_of_block = [&](std::int64_t n_block) {
    return Range{n_block * args.tile.n, min_of((n_block + 1) * args.tile.n, info.seqlen_k)};
  };
  begin_tile(args, scratch, tile.rows);
  for (std::int64_t n_block = split.min; n_block < split.max; ++n_block) {
    const Range keys = keys_of_block(n_block);
    const ScoreTile block{tile.rows, mask, keys};
    compute_scores(args, scratch, source, block, blocks.needs_mask(n_block));
    update_softmax(args, scratch, tile.rows.packed.size(), round_up(keys.size(), kLane));
    if (args.score.dropout.enabled()) drop_weights(args, scratch, block);
    accumulate_values(args, scratch, source, block,
                      n_block + 1 < split.max ? keys_of_block(n_block + 1) : Range{});
  }
  store_tile(args, scratch, item, tile);
}

}  // namespace foveal::cpu
