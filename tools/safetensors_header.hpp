// The JSON header of a safetensors file, before its offsets are compared with the data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/safetensors.hpp"

namespace foveal::tools {

/// The format's own limit; a larger size is a damaged or hostile file.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  FileDType dtype{};
  std::vector<std::int64_t> shape;         // every dimension >= 0
  std::vector<std::int64_t> data_offsets;  // two, each >= 0: [begin, end) in the data
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // names are distinct
  SafetensorsMetadata metadata;
};

/// Reads the header in one pass without building a tree, so that memory is bounded by its size.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json,
                                                   const std::string& source);

/// Absent for a negative dimension and past 2^63 - 1 bytes. Dimensions of 0 count as 1 in that
/// bound, so that strides computed from the other dimensions can't overflow either.
std::optional<std::int64_t> checked_tensor_bytes(std::span<const std::int64_t> shape,
                                                 FileDType dtype);

}  // namespace foveal::tools
