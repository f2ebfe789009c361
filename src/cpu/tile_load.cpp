#include "cpu/tile_load.hpp"

#include <algorithm>

#include "cpu/prefetch.hpp"

namespace foveal::cpu {
namespace {

const std::byte* element_address(const void* base, std::int64_t index, std::int64_t bytes) {
  return static_cast<const std::byte*>(base) + index * bytes;
}

std::byte* element_address(void* base, std::int64_t index, std::int64_t bytes) {
  return static_cast<std::byte*>(base) + index * bytes;
}

template <class T>
void gather(const std::byte* from, std::int64_t stride, std::int64_t count, float* to) {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t j = 0; j < count; ++j) to[j] = load_element<T>(from + j * step);
}

template <class T>
void scatter(const float* from, std::int64_t stride, std::int64_t count, std::byte* to) {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t j = 0; j < count; ++j) {
    const T element = from_float<T>(from[j]);
    std::memcpy(to + j * step, &element, sizeof element);
  }
}

void zero_slots(void* from, std::int64_t count) {
  std::memset(from, 0, static_cast<std::size_t>(count) * sizeof(float));
}

void zero_rows(std::int64_t begin, std::int64_t end, const RowLoader& loader, void* tile,
               std::int64_t ld) {
  const std::int64_t slots = round_up(loader.math->slots(loader.count), kLane);
  for (std::int64_t row = begin; row < end; ++row) zero_slots(slot_at(tile, row * ld), slots);
}

/// A row of bf16 pairs, as they are.
void load_pairs(const RowLoader& loader, std::int64_t index, void* to) {
  constexpr std::int64_t kBytes = 2;
  auto* elements = static_cast<std::byte*>(to);
  const std::int64_t padded = 2 * round_up(loader.math->slots(loader.count), kLane);
  FOVEAL_ASSERT(loader.dtype == DType::kBFloat16);
  const std::byte* from = element_address(loader.base, index, kBytes);
  if (loader.stride == 1) {
    std::memcpy(elements, from, static_cast<std::size_t>(loader.count * kBytes));
  } else {
    for (std::int64_t j = 0; j < loader.count; ++j) {
      std::memcpy(elements + j * kBytes, from + j * loader.stride * kBytes, kBytes);
    }
  }
  std::memset(elements + loader.count * kBytes, 0,
              static_cast<std::size_t>((padded - loader.count) * kBytes));
}

/// Asks for the rows of a tile one by one.
class RowPrefetcher {
 public:
  explicit RowPrefetcher(const KeyRows& rows) : rows_(rows), left_(rows.read()) {
    if (rows.loader.stride != 1) left_ = {};  // scattered elements: more requests than they save
  }

  void fetch_row() {
    if (left_.empty()) return;
    const std::int64_t bytes = dtype_bytes(rows_.loader.dtype);
    const std::byte* row =
        element_address(rows_.loader.base, rows_.locator.row_offset(left_.min), bytes);
    for (std::int64_t byte = 0; byte < rows_.loader.count * bytes; byte += kCacheLineBytes) {
      __builtin_prefetch(row + byte);
    }
    ++left_.min;
  }

 private:
  const KeyRows& rows_;
  algorithm::Range left_;
};

}  // namespace

float load_scalar(DType dtype, const void* base, std::int64_t index) {
  const std::byte* from = element_address(base, index, dtype_bytes(dtype));
  switch (dtype) {
    case DType::kFloat16: return load_element<Half>(from);
    case DType::kBFloat16: return load_element<BFloat16>(from);
    default: return load_element<float>(from);
  }
}

void store_scalar(DType dtype, void* base, std::int64_t index, float value) {
  std::byte* to = element_address(base, index, dtype_bytes(dtype));
  switch (dtype) {
    case DType::kFloat16: return scatter<Half>(&value, 1, 1, to);
    case DType::kBFloat16: return scatter<BFloat16>(&value, 1, 1, to);
    default: return scatter<float>(&value, 1, 1, to);
  }
}

void RowLoader::load(std::int64_t index, float* to) const {
  const std::byte* from = element_address(base, index, dtype_bytes(dtype));
  const bool side_by_side = stride == 1;
  switch (dtype) {
    case DType::kFloat16:
      side_by_side ? math->load_fp16(from, count, to) : gather<Half>(from, stride, count, to);
      break;
    case DType::kBFloat16:
      side_by_side ? math->load_bf16(from, count, to) : gather<BFloat16>(from, stride, count, to);
      break;
    default:
      if (side_by_side) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      } else {
        gather<float>(from, stride, count, to);
      }
      break;
  }
  std::fill(to + count, to + round_up(count, kLane), 0.0f);
}

void RowLoader::load_operand(std::int64_t index, void* to) const {
  if (math->slot_terms == 2) return load_pairs(*this, index, to);
  load(index, static_cast<float*>(to));
}

void RowStorer::store(const float* from, std::int64_t index) const {
  std::byte* to = element_address(base, index, dtype_bytes(dtype));
  const bool side_by_side = stride == 1;
  switch (dtype) {
    case DType::kFloat16:
      side_by_side ? math->store_fp16(from, count, to) : scatter<Half>(from, stride, count, to);
      break;
    case DType::kBFloat16:
      side_by_side ? math->store_bf16(from, count, to) : scatter<BFloat16>(from, stride, count, to);
      break;
    default:
      if (side_by_side) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      } else {
        scatter<float>(from, stride, count, to);
      }
      break;
  }
}

void load_query_rows(const RowLoader& loader, const RowStrides& strides, const QueryTile& rows,
                     void* tile, std::int64_t ld) {
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    loader.load_operand(rows.offset(strides, r), slot_at(tile, (r - rows.packed.min) * ld));
  }
  const std::int64_t count = rows.packed.size();
  zero_rows(count, round_up(count, kLane), loader, tile, ld);
}

void locate_key_rows(const KeyRows& rows, const std::byte** addresses) {
  const algorithm::Range read = rows.read();
  const std::int64_t bytes = dtype_bytes(rows.loader.dtype);
  for (std::int64_t j = read.min; j < read.max;) {
    const std::int64_t count = rows.locator.contiguous_rows(j, read.max - j);
    const std::byte* row = element_address(rows.loader.base, rows.locator.row_offset(j), bytes);
    const std::int64_t step = rows.locator.layout.row_stride * bytes;
    for (std::int64_t i = 0; i < count; ++i) addresses[i] = row + i * step;
    addresses += count;
    j += count;
  }
}

void load_key_rows(const KeyRows& rows, void* tile, std::int64_t ld) {
  load_key_rows(rows, {rows.loader, rows.locator, {}, {}}, tile, ld);
}

void load_key_rows(const KeyRows& rows, const KeyRows& next, void* tile, std::int64_t ld) {
  const algorithm::Range read = rows.read();
  const std::int64_t begin = rows.keys.min;
  const std::int64_t padded = round_up(rows.keys.size(), kLane);
  if (read.empty()) return zero_rows(0, padded, rows.loader, tile, ld);
  zero_rows(0, read.min - begin, rows.loader, tile, ld);
  RowPrefetcher ahead(next);
  for (std::int64_t j = read.min; j < read.max;) {
    const std::int64_t end = j + rows.locator.contiguous_rows(j, read.max - j);
    std::int64_t index = rows.locator.row_offset(j);
    for (; j < end; ++j, index += rows.locator.layout.row_stride) {
      rows.loader.load_operand(index, slot_at(tile, (j - begin) * ld));
      ahead.fetch_row();
    }
  }
  zero_rows(read.max - begin, padded, rows.loader, tile, ld);
}

}  // namespace foveal::cpu
