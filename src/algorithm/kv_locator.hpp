// Where the rows of K or V lie: dense cache, packed or paged, as one address computation.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

/// Strides of a K or V tensor in elements, and its page table. For a dense cache a "page" is the
/// whole row of the batch entry; for packed tensors there is one page.
struct KvLayout {
  std::int64_t page_stride = 0;  ///< Dense: batch stride; paged: stride of a page.
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t dim_stride = 1;
  const std::int32_t* block_table = nullptr;  ///< Null: not paged.
  std::int64_t block_table_batch_stride = 0;
  std::int64_t block_table_page_stride = 1;
  std::int64_t page_size = 0;
  std::int64_t num_pages = 0;  ///< Entries of the page dimension; table values are clamped to it.
};

/// Offset of a row in elements, `base` being that of the sequence and head. `pages` is the
/// sequence's line of the block table, null where rows lie in one piece; `layout` gives sizes and
/// strides of table and pages.
FOVEAL_HOST_DEVICE constexpr std::int64_t kv_row_offset(const KvLayout& layout,
                                                        const std::int32_t* pages,
                                                        std::int64_t base, std::int64_t page_stride,
                                                        std::int64_t row_stride, std::int64_t row) {
  if (pages == nullptr) return base + row * row_stride;
  // Rows and page sizes are below 2^32, and a GPU divides 64-bit numbers slowly.
  const auto row_in_table = static_cast<std::uint32_t>(row);
  const auto page_size = static_cast<std::uint32_t>(layout.page_size);
  const std::int64_t page = clamp_to<std::int64_t>(
      pages[(row_in_table / page_size) * layout.block_table_page_stride], 0, layout.num_pages - 1);
  return base + page * page_stride + (row_in_table % page_size) * row_stride;
}

/// The rows of one sequence and KV head.
struct KvLocator {
  KvLayout layout;
  std::int64_t base = 0;                ///< Offset of the sequence and head, in elements.
  std::int64_t first_row = 0;           ///< k_begin + leftpad_k
  const std::int32_t* pages = nullptr;  ///< The sequence's line of the block table.

  /// Offset of key j's element 0, in elements.
  FOVEAL_HOST_DEVICE constexpr std::int64_t row_offset(std::int64_t j) const {
    return kv_row_offset(layout, pages, base, layout.page_stride, layout.row_stride, first_row + j);
  }

  /// Keys from j on that lie `row_stride` apart: up to the end of j's page.
  FOVEAL_HOST_DEVICE constexpr std::int64_t contiguous_rows(std::int64_t j,
                                                            std::int64_t wanted) const {
    if (pages == nullptr) return wanted;
    return min_of(wanted, layout.page_size - (first_row + j) % layout.page_size);
  }
};

/// `cache_row` is the batch entry of the cache that the sequence uses (cache_batch_idx or b).
FOVEAL_HOST_DEVICE constexpr KvLocator kv_locator(const KvLayout& layout, std::int64_t b,
                                                  std::int64_t cache_row, std::int64_t head_k,
                                                  std::int64_t first_row) {
  KvLocator locator;
  locator.layout = layout;
  locator.first_row = first_row;
  locator.base = head_k * layout.head_stride;
  if (layout.block_table != nullptr) {
    locator.pages = layout.block_table + b * layout.block_table_batch_stride;
  } else {
    locator.base += cache_row * layout.page_stride;
  }
  return locator;
}

}  // namespace foveal::algorithm
