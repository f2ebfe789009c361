#include "cpu/bwd/tile_gradients.hpp"

#include <algorithm>
#include <cstring>

#include "algorithm/online_softmax.hpp"
#include "algorithm/score.hpp"
#include "core/integer.hpp"
#include "cpu/score_products.hpp"

namespace foveal::cpu {
namespace {

using algorithm::kNegativeInfinity;

/// softcap's derivative at every score, which bias_and_mask() is about to overwrite.
void save_slopes(const BackwardArgs& args, const BackwardScratch& scratch, std::int64_t rows,
                 std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* capped = scratch.p + r * scratch.ld_n;
    float* slope = scratch.slope + r * scratch.ld_n;
    for (std::int64_t j = 0; j < columns; ++j) {
      slope[j] = algorithm::cap_derivative(capped[j], args.scores.softcap);
    }
  }
}

/// row = row * factors
void multiply_row(float* row, const float* factors, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; ++j) row[j] *= factors[j];
}

/// One row: scores and dp become p and ds.
void finish_row(const BackwardArgs& args, const BackwardScratch& scratch, const ScoreTile& tile,
                std::int64_t r, GradientOf gradient_of) {
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  float* p = scratch.p + r * scratch.ld_n;
  float* ds = scratch.ds + r * scratch.ld_n;
  if (scratch.lse[r] == kNegativeInfinity) {
    std::fill_n(p, columns, 0.0f);
    std::fill_n(ds, columns, 0.0f);
    return;
  }
  const bool dropout = args.scores.dropout.enabled();
  args.math.exp_sum(p, columns, args.scores.exp_factor(), scratch.lse[r]);
  if (dropout) {
    dropout_factors(args.scores, tile, tile.rows.packed.min + r, scratch.factors);
    multiply_row(ds, scratch.factors, columns);
  }
  args.math.score_gradients(p, scratch.delta[r], ds, columns);
  if (dropout) multiply_row(p, scratch.factors, columns);
  if (gradient_of == GradientOf::kBias) return;
  if (args.scores.softcap > 0) multiply_row(ds, scratch.slope + r * scratch.ld_n, columns);
}

void zero_slots(void* from, std::int64_t count) {
  std::memset(from, 0, static_cast<std::size_t>(count) * sizeof(float));
}

/// Loads keys' rows into `rows`, packs them, and makes pairs of them where `pairs` isn't null.
struct KeyDestination {
  std::int64_t ld = 0;  ///< of rows
  void* rows = nullptr;
  void* packed = nullptr;
  void* pairs = nullptr;
  std::int64_t ld_pairs = 0;
};

void load_operand(const BackwardArgs& args, const KeyRows& rows, const KeyDestination& to) {
  const std::int64_t keys = rows.keys.size();
  const std::int64_t terms = rows.loader.count;
  load_key_rows(rows, to.rows, to.ld);
  args.math.pack(to.rows, to.ld, keys, args.math.slots(terms), to.packed);
  if (args.math.pair_rows != nullptr && to.pairs != nullptr) {
    args.math.pair_rows(to.rows, to.ld, keys, round_up(terms, kLane), to.pairs, to.ld_pairs);
  }
}

}  // namespace

void load_rows(const BackwardArgs& args, const BackwardScratch& scratch, const QueryTile& rows) {
  load_query_rows(args.q.loader, args.q.strides, rows, scratch.q, scratch.ld_q);
  load_query_rows(args.dout.loader, args.dout.strides, rows, scratch.dout, scratch.ld_out);
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    const std::int64_t row = r - rows.packed.min;
    scratch.lse[row] =
        load_scalar(DType::kFloat32, args.lse.base, rows.offset(args.lse.strides, r));
    scratch.delta[row] = args.delta[rows.offset(args.delta_strides, r)];
    if (scratch.lse[row] == kNegativeInfinity) {
      zero_slots(slot_at(scratch.q, row * scratch.ld_q), scratch.ld_q);
      zero_slots(slot_at(scratch.dout, row * scratch.ld_out), scratch.ld_out);
    }
  }
  if (args.math.pair_rows == nullptr) return;
  const std::int64_t count = rows.packed.size();
  args.math.pair_rows(scratch.q, scratch.ld_q, count, round_up(args.geometry.headdim, kLane),
                      scratch.q_pairs, scratch.ld_d);
  args.math.pair_rows(scratch.dout, scratch.ld_out, count, round_up(args.geometry.headdim_v, kLane),
                      scratch.dout_pairs, scratch.ld_dv);
}

void load_keys(const BackwardArgs& args, const BackwardScratch& scratch, const Sequence& sequence,
               std::int64_t head_k, algorithm::Range keys, algorithm::Range seen) {
  const bool paired = args.math.pair_rows != nullptr;
  const algorithm::KvLocator k = locate_keys(args.k.layout, sequence, head_k);
  const algorithm::KvLocator v = locate_keys(args.v.layout, sequence, head_k);
  load_operand(args, {args.k.loader, k, keys, seen},
               {.ld = scratch.ld_q,
                .rows = paired ? scratch.dk : scratch.k_pairs,
                .packed = scratch.k_packed,
                .pairs = scratch.k_pairs,
                .ld_pairs = scratch.ld_d});
  load_operand(args, {args.v.loader, v, keys, seen},
               {.ld = scratch.ld_out, .rows = scratch.dv, .packed = scratch.v_packed});
}

void compute_gradients(const BackwardArgs& args, const BackwardScratch& scratch,
                       const ScoreTile& tile, bool needs_mask, GradientOf gradient_of) {
  const std::int64_t rows = tile.rows.packed.size();
  const std::int64_t keys = tile.keys.size();

  const MaskedTile masked{tile, needs_mask};
  // Strips that the mask hides aren't computed; what stands there must be a number.
  if (needs_mask) {
    std::fill_n(scratch.p, rows * scratch.ld_n, 0.0f);
    std::fill_n(scratch.ds, rows * scratch.ld_n, 0.0f);
  }

  // s = cap(softmax_scale * q k^T) + bias
  multiply_scores(args.math, masked,
                  {.rows = rows,
                   .columns = keys,
                   .depth = args.math.slots(args.geometry.headdim),
                   .a = scratch.q,
                   .lda = scratch.ld_q,
                   .b = scratch.k_packed,
                   .c = scratch.p,
                   .ldc = scratch.ld_n});
  scale_and_cap(args.scores, tile, scratch.p, scratch.ld_n);
  if (args.scores.softcap > 0) save_slopes(args, scratch, rows, round_up(keys, kLane));
  bias_and_mask(args.scores, tile, needs_mask, scratch.p, scratch.ld_n);

  // dp = dout v^T
  multiply_scores(args.math, masked,
                  {.rows = rows,
                   .columns = keys,
                   .depth = args.math.slots(args.geometry.headdim_v),
                   .a = scratch.dout,
                   .lda = scratch.ld_out,
                   .b = scratch.v_packed,
                   .c = scratch.ds,
                   .ldc = scratch.ld_n});

  // p = exp(s - lse), ds = p * (dropout(dp) - delta), p = dropout(p)
  for (std::int64_t r = 0; r < rows; ++r) finish_row(args, scratch, tile, r, gradient_of);
}

void make_operands(const BackwardArgs& args, const BackwardScratch& scratch,
                   const ScoreTile& tile) {
  if (args.math.narrow == nullptr) return;
  const std::int64_t rows = tile.rows.packed.size();
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  args.math.narrow_pairs(scratch.p, scratch.ld_n, rows, columns, scratch.p_pairs, scratch.ld_n);
  args.math.narrow_pairs(scratch.ds, scratch.ld_n, rows, columns, scratch.ds_pairs, scratch.ld_n);
  if (!args.dq.wanted) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    args.math.narrow(scratch.ds + row * scratch.ld_n, columns,
                     slot_at(scratch.ds_operand, row * scratch.ld_w));
  }
}

}  // namespace foveal::cpu
