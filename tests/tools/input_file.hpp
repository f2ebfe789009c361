// Builds the input files of `foveal run`: named tensors with their values, then one file.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "tools/safetensors.hpp"

namespace foveal::tools {

using Shape = std::vector<std::int64_t>;

class InputFile {
 public:
  SafetensorsMetadata metadata;

  /// Replaces a tensor of the same name.
  InputFile& floats(const std::string& name, const Shape& shape, std::vector<float> values);
  InputFile& integers(const std::string& name, std::vector<std::int32_t> values);
  InputFile& integers(const std::string& name, const Shape& shape,
                      std::vector<std::int32_t> values);
  InputFile& bytes(const std::string& name, FileDType dtype, const Shape& shape,
                   std::vector<std::uint8_t> values);
  /// Standard normal values, the same for the same name and shape.
  InputFile& normal(const std::string& name, const Shape& shape);
  /// All elements the same.
  InputFile& filled(const std::string& name, const Shape& shape, float value);
  /// Zeros of any type.
  InputFile& zeros(const std::string& name, FileDType dtype, const Shape& shape);
  InputFile& without(const std::string& name);

  /// Writes the file and returns its path.
  std::string write(const std::string& path) const;

 private:
  struct Entry {
    FileDType dtype;
    Shape shape;
    std::string bytes;
  };
  InputFile& put(const std::string& name, FileDType dtype, const Shape& shape, const void* data,
                 std::size_t bytes);

  std::map<std::string, Entry> entries_;
};

std::int64_t count_of(const Shape& shape);

/// q, k and v of standard normal values, [2, 5, 4, 8] and [2, 7, 2, 8] in fp32.
InputFile dense_input();

/// Two documents of 3 and 4 queries, 5 and 4 keys, 4 heads on 2, headdim 8, in fp32.
InputFile packed_input();

/// Two sequences of 20 and 5 keys in 4 pages of 16, one query each, 4 heads on 2, headdim 8.
InputFile paged_input();

/// The values of a written file's F32 tensor.
std::vector<float> floats_of(const SafetensorsFile& file, const std::string& name);

}  // namespace foveal::tools
