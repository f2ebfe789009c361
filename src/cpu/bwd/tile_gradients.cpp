#include "cpu/bwd/tile_gradients.hpp"

#include <algorithm>

#include "algorithm/online_softmax.hpp"
#include "algorithm/score.hpp"
#include "core/integer.hpp"

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

/// ds = p * (dp - delta), in dp's place
void subtract_delta(const float* p, float delta, float* ds, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; ++j) ds[j] = p[j] * (ds[j] - delta);
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
  args.math.exp_sum(p, columns, scratch.lse[r]);
  if (dropout) {
    dropout_factors(args.scores, tile, tile.rows.packed.min + r, scratch.factors);
    multiply_row(ds, scratch.factors, columns);
  }
  subtract_delta(p, scratch.delta[r], ds, columns);
  if (dropout) multiply_row(p, scratch.factors, columns);
  if (gradient_of == GradientOf::kBias) return;
  if (args.scores.softcap > 0) multiply_row(ds, scratch.slope + r * scratch.ld_n, columns);
  args.math.scale(ds, columns, args.scores.softmax_scale);
}

}  // namespace

void load_rows(const BackwardArgs& args, const BackwardScratch& scratch, const QueryTile& rows) {
  load_query_rows(args.q.loader, args.q.strides, rows, scratch.q, scratch.ld_d);
  load_query_rows(args.dout.loader, args.dout.strides, rows, scratch.dout, scratch.ld_dv);
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    const std::int64_t row = r - rows.packed.min;
    scratch.lse[row] =
        load_scalar(DType::kFloat32, args.lse.base, rows.offset(args.lse.strides, r));
    scratch.delta[row] = args.delta[rows.offset(args.delta_strides, r)];
    if (scratch.lse[row] == kNegativeInfinity) {
      std::fill_n(scratch.q + row * scratch.ld_d, scratch.ld_d, 0.0f);
      std::fill_n(scratch.dout + row * scratch.ld_dv, scratch.ld_dv, 0.0f);
    }
  }
}

void load_keys(const BackwardArgs& args, const BackwardScratch& scratch, const Sequence& sequence,
               std::int64_t head_k, algorithm::Range keys, algorithm::Range seen) {
  load_key_rows(args.k.loader, locate_keys(args.k.layout, sequence, head_k), keys, seen, scratch.k,
                scratch.ld_d);
  load_key_rows(args.v.loader, locate_keys(args.v.layout, sequence, head_k), keys, seen, scratch.v,
                scratch.ld_dv);
  args.math.pack(scratch.k, scratch.ld_d, keys.size(), args.geometry.headdim, scratch.k_packed);
  args.math.pack(scratch.v, scratch.ld_dv, keys.size(), args.geometry.headdim_v, scratch.v_packed);
}

void compute_gradients(const BackwardArgs& args, const BackwardScratch& scratch,
                       const ScoreTile& tile, bool needs_mask, GradientOf gradient_of) {
  const std::int64_t rows = tile.rows.packed.size();
  const std::int64_t keys = tile.keys.size();

  // s = cap(softmax_scale * q k^T) + bias
  args.math.multiply_packed({.rows = rows,
                             .columns = keys,
                             .depth = args.geometry.headdim,
                             .a = scratch.q,
                             .lda = scratch.ld_d,
                             .b = scratch.k_packed,
                             .c = scratch.p,
                             .ldc = scratch.ld_n});
  scale_and_cap(args.scores, tile, scratch.p, scratch.ld_n);
  if (args.scores.softcap > 0) save_slopes(args, scratch, rows, round_up(keys, kLane));
  bias_and_mask(args.scores, tile, needs_mask, scratch.p, scratch.ld_n);

  // dp = dout v^T
  args.math.multiply_packed({.rows = rows,
                             .columns = keys,
                             .depth = args.geometry.headdim_v,
                             .a = scratch.dout,
                             .lda = scratch.ld_dv,
                             .b = scratch.v_packed,
                             .c = scratch.ds,
                             .ldc = scratch.ld_n});

  // p = exp(s - lse), ds = p * (dropout(dp) - delta), p = dropout(p)
  for (std::int64_t r = 0; r < rows; ++r) finish_row(args, scratch, tile, r, gradient_of);
}

}  // namespace foveal::cpu
