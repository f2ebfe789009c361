// What the kernels of the backward read of a launch.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include <foveal/tensor.hpp>

#include "cuda/attention_args.hpp"
#include "cuda/portable/bwd/config.hpp"

namespace foveal::cuda::bwd {

/// An operand's rows as the copies take them.
struct ElementsInfo {
  DType dtype = DType::kNone;
  bool whole_units = false;  ///< Rows are adjacent 16-byte units, aligned, of the kernel's dtype.
};

/// A gradient that is written from registers.
struct GradientInfo {
  DType dtype = DType::kNone;  ///< kNone: not wanted.
  bool in_pairs = false;       ///< Two adjacent elements may be stored at once,
  bool whole_units = false;    ///< or 16 bytes: rows are adjacent units, aligned.
};

/// One tile of held rows: sequence b, rows [block * held, ...) of what it has.
struct TileEntry {
  std::int32_t b;
  std::int32_t block;
};

/// How the tiles of one side are numbered over blocks. Dense: every sequence has `blocks`. Packed:
/// list_tiles() wrote `entries`, and their number before them.
struct TileSchedule {
  std::int32_t blocks = 0;
  std::int32_t heads = 0;
  const TileEntry* entries = nullptr;  ///< Null: dense. entries[0].b is the number; tiles follow.
  std::int64_t num_blocks = 0;         ///< Of the launch.
};

struct BackwardArgs {
  AttentionArgs attention;
  RowOperand dout;
  RowValues dlse;
  RowOperand dq;
  KeyOperand dk;
  KeyOperand dv;
  ElementsInfo q_elements, k_elements, v_elements, dout_elements;
  GradientInfo dq_info, dk_info, dv_info;

  float2* stats = nullptr;   ///< [nheads_q, total_q]
  float* dq_sums = nullptr;  ///< [nheads_q, total_q, dq_ld]; null: dq is not summed by atomics.
  std::int32_t dq_ld = 0;
  DType dtype = DType::kNone;  ///< Of q, k and v, and of the products.
  std::int64_t total_q = 0;
  std::int64_t rows_per_batch = 0;  ///< Of stats and dq_sums: seqlen_q; 0 when packed.
  TileSchedule keys;
  TileSchedule rows;

  /// Index of row i of a sequence in stats and dq_sums, before the head.
  FOVEAL_HOST_DEVICE std::int64_t row_index(std::int64_t b, std::int64_t q_begin) const {
    return b * rows_per_batch + q_begin;
  }
};

/// Of the pass that computes lse and delta.
struct StatsArgs {
  BackwardArgs backward;
  bool whole_units = false;  ///< out and dout are aligned, adjacent, of whole units of 8.
  int lanes = 32;            ///< That share a row: a power of two, 8 columns each at a time.
  bool by_fours = false;  ///< Whole units of the products' type, of 16 bits: four rows at a time.

  /// Which instance of the pass: the type where it goes by fours, kNone for any.
  [[nodiscard]] DType units() const { return by_fours ? backward.dtype : DType::kNone; }
};

/// Of the pass that lists the tiles of packed sequences.
struct ListArgs {
  algorithm::SeqlenSource lengths;
  std::int32_t batch = 0;
  std::int32_t held = 0;  ///< Rows of a tile.
  Side side = Side::kKeys;
  TileEntry* entries = nullptr;  ///< Null: nothing is packed.
  std::int32_t max_entries = 0;
};

/// Of dbias, in its own shape.
struct DbiasArgs {
  BackwardArgs backward;
  void* dbias = nullptr;
  DType dtype = DType::kNone;
  BiasStrides strides;
  std::int32_t shape[4] = {1, 1, 1, 1};
  std::int32_t row_tiles = 1;
  std::int32_t column_tiles = 1;
  std::int32_t seqlen_q = 0;  ///< Of the problem, where dbias has one row for all.
  std::int32_t seqlen_k = 0;
};

}  // namespace foveal::cuda::bwd
