// Rows of q, k, v, dout, ... between memory and tiles: any strides (a last dimension that is not
// contiguous, 0, negative), any alignment, any dtype, dense, packed or paged.
//
// What nobody in a tile sees is not read: its row of the tile is 0, so that NaN in unused slots of
// a cache reaches nothing (0 * NaN would be NaN).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <foveal/tensor.hpp>

#include "algorithm/kv_locator.hpp"
#include "algorithm/range.hpp"
#include "core/half.hpp"
#include "cpu/tile_math.hpp"
#include "problem/geometry.hpp"

namespace foveal::cpu {

/// One element at a byte address of any alignment.
template <class T>
[[nodiscard]] float load_element(const std::byte* from) {
  T element;
  std::memcpy(&element, from, sizeof element);
  return to_float(element);
}

/// One element of `dtype` (fp16, bf16, fp32) at `index` elements from `base`.
[[nodiscard]] float load_scalar(DType dtype, const void* base, std::int64_t index);
void store_scalar(DType dtype, void* base, std::int64_t index, float value);

/// Loads `count` elements that lie `stride` apart, beginning `index` elements from `base`.
struct RowLoader {
  const TileMath* math = nullptr;
  const void* base = nullptr;
  DType dtype = DType::kNone;
  std::int64_t stride = 1;
  std::int64_t count = 0;

  /// As fp32, filled up to round_up(count, kLane) with 0.
  void load(std::int64_t index, float* to) const;
  /// As a row of an operand of `math`, its slots filled up to a multiple of kLane with 0.
  void load_operand(std::int64_t index, void* to) const;
};

/// The counterpart for results.
struct RowStorer {
  const TileMath* math = nullptr;
  void* base = nullptr;
  DType dtype = DType::kNone;
  std::int64_t stride = 1;
  std::int64_t count = 0;

  void store(const float* from, std::int64_t index) const;
};

/// Packed rows [packed.min, packed.max) of one KV head's group, into rows 0.. of an operand. Packed
/// row r is query row r / group, head head_k * group + r % group. Rows of the tile from
/// packed.size() to round_up(packed.size(), kLane) become 0.
struct QueryTile {
  std::int64_t b = 0;
  std::int64_t q_begin = 0;  ///< SeqlenInfo::q_begin
  std::int64_t head_k = 0;
  std::int64_t group = 1;  ///< qhead_per_khead
  algorithm::Range packed;

  [[nodiscard]] std::int64_t query_row(std::int64_t r) const { return r / group; }
  [[nodiscard]] std::int64_t query_head(std::int64_t r) const { return head_k * group + r % group; }
  /// Offset of packed row r's element 0 in a tensor with these strides.
  [[nodiscard]] std::int64_t offset(const RowStrides& strides, std::int64_t r) const {
    return strides.offset(b, q_begin + query_row(r), query_head(r));
  }
};
void load_query_rows(const RowLoader& loader, const RowStrides& strides, const QueryTile& rows,
                     void* tile, std::int64_t ld);

/// Keys [keys.min, keys.max) of one KV head, of which `seen` are read; those outside, and the rows
/// of the tile up to round_up(keys.size(), kLane), become 0. `loader.stride` is the layout's
/// dim_stride.
struct KeyRows {
  const RowLoader& loader;
  const algorithm::KvLocator& locator;
  algorithm::Range keys;
  algorithm::Range seen;

  [[nodiscard]] algorithm::Range read() const { return algorithm::intersect(keys, seen); }
};

/// The addresses of the rows that are read, in the order of the keys.
void locate_key_rows(const KeyRows& rows, const std::byte** addresses);

/// Loads rows into rows 0.. of an operand.
void load_key_rows(const KeyRows& rows, void* tile, std::int64_t ld);

/// The same, and while at it asks the caches for `next`, the rows that will be loaded after these.
/// The heads of a row lie side by side, so the rows of one head are often a page apart, where no
/// hardware prefetcher follows.
void load_key_rows(const KeyRows& rows, const KeyRows& next, void* tile, std::int64_t ld);

inline void load_key_rows(const RowLoader& loader, const algorithm::KvLocator& locator,
                          algorithm::Range keys, algorithm::Range seen, void* tile,
                          std::int64_t ld) {
  load_key_rows({loader, locator, keys, seen}, tile, ld);
}

}  // namespace foveal::cpu
