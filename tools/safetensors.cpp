#include "tools/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "tools/message_text.hpp"
#include "tools/safetensors_header.hpp"

namespace foveal::tools {
namespace {

struct FileDTypeInfo {
  FileDType dtype;
  std::string_view name;
  std::int64_t bytes;
  DType computed_as;
};

/// In the order of the enumeration.
constexpr std::array<FileDTypeInfo, 15> kFileDTypes{{
    {FileDType::kBool, "BOOL", 1, DType::kBool},
    {FileDType::kU8, "U8", 1, DType::kNone},
    {FileDType::kI8, "I8", 1, DType::kNone},
    {FileDType::kU16, "U16", 2, DType::kNone},
    {FileDType::kI16, "I16", 2, DType::kNone},
    {FileDType::kU32, "U32", 4, DType::kNone},
    {FileDType::kI32, "I32", 4, DType::kInt32},
    {FileDType::kU64, "U64", 8, DType::kNone},
    {FileDType::kI64, "I64", 8, DType::kNone},
    {FileDType::kF8E4M3, "F8_E4M3", 1, DType::kNone},
    {FileDType::kF8E5M2, "F8_E5M2", 1, DType::kNone},
    {FileDType::kF16, "F16", 2, DType::kFloat16},
    {FileDType::kBF16, "BF16", 2, DType::kBFloat16},
    {FileDType::kF32, "F32", 4, DType::kFloat32},
    {FileDType::kF64, "F64", 8, DType::kNone},
}};

constexpr bool indexed_by_dtype() {
  for (std::size_t i = 0; i < kFileDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kFileDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(indexed_by_dtype(), "kFileDTypes must follow FileDType's order");

const FileDTypeInfo& info_of(FileDType dtype) {
  return kFileDTypes[static_cast<std::size_t>(dtype)];
}

/// One tensor by itself: its range runs forward, ends inside the data, and has the shape's size.
Status check_entry(const TensorEntry& entry, std::uint64_t data_bytes, const std::string& source) {
  const auto refusal = [&](std::string_view why) {
    return Status::invalid_argument(
        fmt::format("{}: tensor {}: {}", source, in_quotes(entry.name), why));
  };
  const std::int64_t begin = entry.data_offsets[0];
  const std::int64_t end = entry.data_offsets[1];
  const std::optional<std::int64_t> bytes = checked_tensor_bytes(entry.shape, entry.dtype);
  if (!bytes) {
    return refusal(fmt::format("shape {} of {} is more than 2^63 - 1 bytes", list_text(entry.shape),
                               file_dtype_name(entry.dtype)));
  }
  if (end < begin) {
    return refusal(fmt::format("data_offsets [{}, {}] end before they begin", begin, end));
  }
  if (static_cast<std::uint64_t>(end) > data_bytes) {
    return refusal(
        fmt::format("data_offsets [{}, {}] end past the {} bytes of data: wrong, or the "
                    "file is truncated",
                    begin, end, data_bytes));
  }
  if (end - begin != *bytes) {
    return refusal(fmt::format("shape {} of {} takes {} bytes, data_offsets [{}, {}] hold {}",
                               list_text(entry.shape), file_dtype_name(entry.dtype), *bytes, begin,
                               end, end - begin));
  }
  return Status::ok();
}

/// The tensors together: no byte of the data belongs to two of them, none to nobody.
Status check_cover(std::span<const TensorEntry> entries, std::uint64_t data_bytes,
                   const std::string& source) {
  const auto refusal = [&](std::string_view why) {
    return Status::invalid_argument(fmt::format("{}: {}", source, why));
  };
  std::vector<const TensorEntry*> by_offset(entries.size());
  std::transform(entries.begin(), entries.end(), by_offset.begin(), [](auto& e) { return &e; });
  std::sort(by_offset.begin(), by_offset.end(),
            [](auto* a, auto* b) { return a->data_offsets < b->data_offsets; });

  std::int64_t covered = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry* entry : by_offset) {
    const std::int64_t begin = entry->data_offsets[0];
    if (begin < covered) {
      return refusal(fmt::format("tensors {} and {} overlap: data_offsets {} and {}",
                                 in_quotes(before->name), in_quotes(entry->name),
                                 list_text(before->data_offsets), list_text(entry->data_offsets)));
    }
    if (begin > covered) {
      return refusal(fmt::format("bytes {} to {} of the data belong to no tensor, before {}",
                                 covered, begin, in_quotes(entry->name)));
    }
    covered = entry->data_offsets[1];
    before = entry;
  }
  if (static_cast<std::uint64_t>(covered) == data_bytes) return Status::ok();
  return refusal(
      fmt::format("bytes {} to {} of the data belong to no tensor", covered, data_bytes));
}

struct Parts {
  std::string_view header;
  std::span<const std::byte> data;
};

Result<Parts> split(std::span<const std::byte> bytes, const std::string& source) {
  const auto refusal = [&](std::string_view why) {
    return Status::invalid_argument(fmt::format("{}: {}", source, why));
  };
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return refusal(
        fmt::format("{} bytes are too few for a safetensors file, which begins with an "
                    "8-byte header size",
                    bytes.size()));
  }
  static_assert(std::endian::native == std::endian::little, "the file is little-endian");
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  bytes = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return refusal(fmt::format("header size {}: the safetensors format allows at most {} bytes",
                               header_bytes, kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > bytes.size()) {
    return refusal(fmt::format("header size {}: only {} bytes follow in the file", header_bytes,
                               bytes.size()));
  }
  return Parts{.header = {reinterpret_cast<const char*>(bytes.data()), header_bytes},
               .data = bytes.subspan(header_bytes)};
}

Status out_of_memory(const std::string& source) {
  return Status::out_of_memory(source + ": not enough memory for the safetensors header");
}

}  // namespace

std::string_view file_dtype_name(FileDType dtype) { return info_of(dtype).name; }

std::optional<FileDType> file_dtype_from_name(std::string_view name) {
  for (const FileDTypeInfo& info : kFileDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::int64_t file_dtype_bytes(FileDType dtype) { return info_of(dtype).bytes; }

DType to_dtype(FileDType dtype) { return info_of(dtype).computed_as; }

std::optional<FileDType> to_file_dtype(DType dtype) {
  if (dtype == DType::kNone) return std::nullopt;
  for (const FileDTypeInfo& info : kFileDTypes) {
    if (info.computed_as == dtype) return info.dtype;
  }
  return std::nullopt;
}

std::optional<std::int64_t> checked_tensor_bytes(std::span<const std::int64_t> shape,
                                                 FileDType dtype) {
  std::int64_t bytes = file_dtype_bytes(dtype);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(dimension, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

std::int64_t TensorView::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool TensorView::is_aligned() const {
  const auto bytes = static_cast<std::uintptr_t>(file_dtype_bytes(dtype));
  return std::bit_cast<std::uintptr_t>(data.data()) % bytes == 0;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> mapping = MappedFile::open(path);
  if (!mapping) return mapping.status();
  Result<SafetensorsFile> file = parse(mapping->bytes(), path);
  if (file) file->mapping_ = *std::move(mapping);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                               const std::string& source) try {
  const Result<Parts> parts = split(bytes, source);
  if (!parts) return parts.status();
  Result<SafetensorsHeader> header = parse_safetensors_header(parts->header, source);
  if (!header) return header.status();
  for (const TensorEntry& entry : header->tensors) {
    FOVEAL_RETURN_IF_ERROR(check_entry(entry, parts->data.size(), source));
  }
  FOVEAL_RETURN_IF_ERROR(check_cover(header->tensors, parts->data.size(), source));

  SafetensorsFile file;
  file.metadata_ = std::move(header->metadata);
  file.tensors_.reserve(header->tensors.size());
  for (TensorEntry& entry : header->tensors) {
    const auto begin = static_cast<std::size_t>(entry.data_offsets[0]);
    const auto end = static_cast<std::size_t>(entry.data_offsets[1]);
    file.tensors_.push_back({.name = std::move(entry.name),
                             .dtype = entry.dtype,
                             .shape = std::move(entry.shape),
                             .data = parts->data.subspan(begin, end - begin)});
  }
  return file;
} catch (const std::bad_alloc&) {
  return out_of_memory(source);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const TensorView& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace foveal::tools
