#include "tests/tools/input_file.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "tests/support/random.hpp"

namespace foveal::tools {

std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

InputFile& InputFile::put(const std::string& name, FileDType dtype, const Shape& shape,
                          const void* data, std::size_t bytes) {
  const auto wanted = static_cast<std::size_t>(count_of(shape) * file_dtype_bytes(dtype));
  EXPECT_EQ(bytes, wanted) << name;
  entries_[name] = {
      .dtype = dtype, .shape = shape, .bytes = std::string(static_cast<const char*>(data), bytes)};
  return *this;
}

InputFile& InputFile::floats(const std::string& name, const Shape& shape,
                             std::vector<float> values) {
  return put(name, FileDType::kF32, shape, values.data(), values.size() * sizeof(float));
}

InputFile& InputFile::integers(const std::string& name, std::vector<std::int32_t> values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return integers(name, shape, std::move(values));
}

InputFile& InputFile::integers(const std::string& name, const Shape& shape,
                               std::vector<std::int32_t> values) {
  return put(name, FileDType::kI32, shape, values.data(), values.size() * sizeof(std::int32_t));
}

InputFile& InputFile::bytes(const std::string& name, FileDType dtype, const Shape& shape,
                            std::vector<std::uint8_t> values) {
  return put(name, dtype, shape, values.data(), values.size());
}

InputFile& InputFile::normal(const std::string& name, const Shape& shape) {
  test::Random random(std::hash<std::string>()(name));
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  for (float& value : values) value = static_cast<float>(random.normal());
  return floats(name, shape, std::move(values));
}

InputFile& InputFile::filled(const std::string& name, const Shape& shape, float value) {
  return floats(name, shape, std::vector<float>(static_cast<std::size_t>(count_of(shape)), value));
}

InputFile& InputFile::zeros(const std::string& name, FileDType dtype, const Shape& shape) {
  const std::string bytes(static_cast<std::size_t>(count_of(shape) * file_dtype_bytes(dtype)), 0);
  return put(name, dtype, shape, bytes.data(), bytes.size());
}

InputFile& InputFile::without(const std::string& name) {
  entries_.erase(name);
  return *this;
}

std::string InputFile::write(const std::string& path) const {
  std::vector<TensorView> views;
  for (const auto& [name, entry] : entries_) {
    views.push_back({.name = name,
                     .dtype = entry.dtype,
                     .shape = entry.shape,
                     .data = std::as_bytes(std::span(entry.bytes))});
  }
  const Status status = write_safetensors(path, views, metadata);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return path;
}

InputFile dense_input() {
  InputFile file;
  file.normal("q", {2, 5, 4, 8}).normal("k", {2, 7, 2, 8}).normal("v", {2, 7, 2, 8});
  return file;
}

InputFile packed_input() {
  InputFile file;
  file.normal("q", {7, 4, 8}).normal("k", {9, 2, 8}).normal("v", {9, 2, 8});
  file.integers("cu_seqlens_q", {0, 3, 7}).integers("cu_seqlens_k", {0, 5, 9});
  return file;
}

InputFile paged_input() {
  InputFile file;
  file.normal("q", {2, 1, 4, 8}).normal("k", {4, 16, 2, 8}).normal("v", {4, 16, 2, 8});
  file.integers("seqused_k", {20, 5}).integers("block_table", {2, 2}, {3, 1, 0, -1});
  return file;
}

std::vector<float> floats_of(const SafetensorsFile& file, const std::string& name) {
  const TensorView* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != FileDType::kF32) {
    ADD_FAILURE() << name << (tensor == nullptr ? " is missing" : " is not F32");
    return {};
  }
  std::vector<float> values(static_cast<std::size_t>(tensor->numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

}  // namespace foveal::tools
