// safetensors files: an 8-byte little-endian header size, a JSON header, then the tensors' bytes.
//
//   Result<SafetensorsFile> file = SafetensorsFile::open("layer0.safetensors");
//   if (!file) return file.status();
//   if (const TensorView* q = file->find("q")) use(q->shape, q->data);
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "tools/mapped_file.hpp"

namespace foveal::tools {

/// The element types that a file may hold; foveal computes with some of them.
enum class FileDType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF8E4M3,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64,
};

/// "F16", as the header spells it.
std::string_view file_dtype_name(FileDType dtype);
std::optional<FileDType> file_dtype_from_name(std::string_view name);
std::int64_t file_dtype_bytes(FileDType dtype);

/// kNone for types that foveal does not compute with.
DType to_dtype(FileDType dtype);
/// Absent for kNone.
std::optional<FileDType> to_file_dtype(DType dtype);

/// A row-major tensor without gaps in someone else's memory.
struct TensorView {
  std::string name;
  FileDType dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // may begin at any byte: copy it where is_aligned() is false

  [[nodiscard]] std::int64_t numel() const;
  /// Whether `data` may be read through a pointer to the element type.
  [[nodiscard]] bool is_aligned() const;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A file that was checked from end to end: every tensor lies inside the data, none overlap, and
/// together they cover it. Views stay valid, at the same address, when the object is moved.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  /// Of bytes that outlive the object; `source` begins each message.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& source);

  /// Null when the file has no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  /// In the header's order.
  [[nodiscard]] std::span<const TensorView> tensors() const { return tensors_; }
  [[nodiscard]] const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;

  std::optional<MappedFile> mapping_;
  std::vector<TensorView> tensors_;
  SafetensorsMetadata metadata_;
};

/// Writes the file whole or not at all. The header lists the tensors in the order given, with
/// metadata first. The data begins at a multiple of 8 bytes and holds wider elements before
/// narrower ones, so that every tensor is aligned without the gaps that the format forbids.
Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata);

}  // namespace foveal::tools
