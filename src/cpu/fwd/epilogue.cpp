#include "cpu/fwd/epilogue.hpp"

#include <algorithm>
#include <atomic>

#include "algorithm/online_softmax.hpp"
#include "algorithm/split_merge.hpp"

namespace foveal::cpu {
namespace {

using algorithm::kNegativeInfinity;

/// Stores a finished row of packed row r. `row` has headdim_v values.
void store_row(const ForwardArgs& args, const QueryTile& rows, std::int64_t r, const float* row,
               float lse) {
  args.out.store(row, rows.offset(args.out_strides, r));
  if (args.lse != nullptr) {
    store_scalar(DType::kFloat32, args.lse, rows.offset(args.lse_strides, r), lse);
  }
}

/// Finishes row r of the accumulator in place; returns its lse. The sink goes with the first split.
float finish_row(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item,
                 const QueryTile& rows, std::int64_t r) {
  const std::int64_t row = r - rows.packed.min;
  algorithm::SoftmaxState& state = scratch.state[row];
  float factor = 1.0f;
  if (args.sinks != nullptr && item.split == 0) {
    const float sink =
        load_scalar(DType::kFloat32, args.sinks, rows.query_head(r) * args.sink_stride);
    factor = algorithm::fold_sink(state, sink);
  }
  factor *= algorithm::inverse_row_sum(state.row_sum);
  args.math->scale(scratch.acc + row * scratch.ld_dv, round_up(args.geometry.headdim_v, kLane),
                   factor);
  return algorithm::row_lse(state);
}

/// sum += out of one split, by the weights of their lse. A split without a key for the row has
/// nothing to read.
void merge_row(const ForwardPartials& partials, std::int64_t slot, std::int64_t row, float* sum,
               float& lse) {
  const float split_lse = partials.lse_row(slot, row);
  if (split_lse == kNegativeInfinity) return;
  const algorithm::MergeWeights weights = algorithm::merge_weights(lse, split_lse);
  const float* split_out = partials.out_row(slot, row);
  for (std::int64_t d = 0; d < partials.ld; ++d) {
    sum[d] = weights.weight_a * sum[d] + weights.weight_b * split_out[d];
  }
  lse = weights.lse;
}

/// Merges the splits of a tile in their order, so that the bits don't depend on which came last.
void merge_splits(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item,
                  const ForwardTile& tile) {
  const std::int64_t first_slot = item.first_slot(args.geometry.nheads_k);
  float* sum = scratch.acc;
  for (std::int64_t r = tile.rows.packed.min; r < tile.rows.packed.max; ++r) {
    std::fill_n(sum, args.partials.ld, 0.0f);
    float lse = kNegativeInfinity;
    for (std::int64_t split = 0; split < item.sequence->num_splits; ++split) {
      merge_row(args.partials, first_slot + split, r - tile.rows.packed.min, sum, lse);
    }
    store_row(args, tile.rows, r, sum, lse);
  }
  store_padding(args, scratch, tile);
}

/// Counts this split as done; true for the last one, which then sees what the others wrote.
bool arrive_last(const ForwardArgs& args, const WorkItem& item) {
  const std::atomic_ref<std::int32_t> arrived(
      args.partials.arrived[item.first_slot(args.geometry.nheads_k)]);
  return arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == item.sequence->num_splits;
}

}  // namespace

void store_tile(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item,
                const ForwardTile& tile) {
  const bool whole = item.sequence->num_splits == 1;
  const std::int64_t slot = item.first_slot(args.geometry.nheads_k) + item.split;
  for (std::int64_t r = tile.rows.packed.min; r < tile.rows.packed.max; ++r) {
    const std::int64_t row = r - tile.rows.packed.min;
    const float lse = finish_row(args, scratch, item, tile.rows, r);
    const float* acc = scratch.acc + row * scratch.ld_dv;
    if (whole) {
      store_row(args, tile.rows, r, acc, lse);
    } else {
      args.partials.lse_row(slot, row) = lse;
      std::copy_n(acc, args.partials.ld, args.partials.out_row(slot, row));
    }
  }
  if (whole) {
    store_padding(args, scratch, tile);
  } else if (arrive_last(args, item)) {
    merge_splits(args, scratch, item, tile);
  }
}

void store_padding(const ForwardArgs& args, const ForwardScratch& scratch,
                   const ForwardTile& tile) {
  if (tile.padding.empty()) return;
  std::fill_n(scratch.acc, round_up(args.geometry.headdim_v, kLane), 0.0f);
  for (std::int64_t r = tile.padding.min; r < tile.padding.max; ++r) {
    store_row(args, tile.rows, r, scratch.acc, kNegativeInfinity);
  }
}

}  // namespace foveal::cpu
