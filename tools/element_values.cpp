#include "tools/element_values.hpp"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "src/core/half.hpp"
#include "tools/tensor_walk.hpp"

namespace foveal::tools {
namespace {

template <class T>
T read_as(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void write_as(std::byte* data, std::int64_t index, T value) {
  std::memcpy(data + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

double element_value(FileDType dtype, const std::byte* data, std::int64_t index) {
  switch (dtype) {
    case FileDType::kF16: return to_float(read_as<Half>(data, index));
    case FileDType::kBF16: return to_float(read_as<BFloat16>(data, index));
    case FileDType::kF32: return read_as<float>(data, index);
    case FileDType::kF64: return read_as<double>(data, index);
    case FileDType::kI32: return read_as<std::int32_t>(data, index);
    case FileDType::kI64: return static_cast<double>(read_as<std::int64_t>(data, index));
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

void store_element(DType dtype, std::byte* data, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kFloat16: return write_as(data, index, from_float<Half>(value));
    case DType::kBFloat16: return write_as(data, index, from_float<BFloat16>(value));
    default: return write_as(data, index, value);
  }
}

Result<AlignedBuffer> converted(const TensorView& tensor, DType dtype) {
  const std::int64_t count = tensor.numel();
  FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(count * dtype_bytes(dtype), tensor.name));
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = element_value(tensor.dtype, tensor.data.data(), i);
    store_element(dtype, buffer.data(), i, static_cast<float>(value));
  }
  return std::move(buffer);
}

Result<AlignedBuffer> narrowed_to_int32(const TensorView& tensor) {
  const std::int64_t count = tensor.numel();
  FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(count * 4, tensor.name));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = read_as<std::int64_t>(tensor.data.data(), i);
    if (value != static_cast<std::int32_t>(value)) {
      return Status::invalid_argument(
          fmt::format("{} has element {} = {}: it must fit in 32 bits", tensor.name, i, value));
    }
    write_as(buffer.data(), i, static_cast<std::int32_t>(value));
  }
  return std::move(buffer);
}

Result<AlignedBuffer> copied(const TensorView& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.data.size());
  FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(bytes, tensor.name));
  if (bytes > 0) std::memcpy(buffer.data(), tensor.data.data(), tensor.data.size());
  return std::move(buffer);
}

std::vector<double> values_of(FileDType dtype, const TensorSpec& spec, const void* data) {
  std::vector<double> values(static_cast<std::size_t>(spec.numel()));
  for_each_element(spec, [&](std::int64_t index, std::int64_t offset) {
    values[static_cast<std::size_t>(index)] =
        element_value(dtype, static_cast<const std::byte*>(data), offset);
  });
  return values;
}

}  // namespace foveal::tools
