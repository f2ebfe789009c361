#include "reference/operand_reader.hpp"

#include <cstring>

#include "core/half.hpp"
#include "core/host_device.hpp"

namespace foveal::reference {
namespace {

/// Through memcpy: the data may begin at any byte.
template <class T>
T load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

/// Calls `visit` with a value of the storage type.
template <class Visitor>
void visit_dtype(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kNone: return;
    case DType::kFloat16: return visit(Half{});
    case DType::kBFloat16: return visit(BFloat16{});
    case DType::kFloat32: return visit(0.0f);
    case DType::kInt32: return visit(std::int32_t{});
    case DType::kBool: return visit(false);
  }
}

double to_double(Half value) { return to_float(value); }
double to_double(BFloat16 value) { return to_float(value); }
double to_double(float value) { return value; }
double to_double(std::int32_t value) { return value; }

/// Element `offset` of an array of T at any address.
template <class T>
double load_element(const std::byte* data, std::int64_t offset) {
  return to_double(load<T>(data + offset * static_cast<std::int64_t>(sizeof(T))));
}
template <>
double load_element<bool>(const std::byte* data, std::int64_t offset) {
  return data[offset] != std::byte{0} ? 1.0 : 0.0;
}

}  // namespace

OperandReader::OperandReader(const TensorSpec& spec, const void* data)
    : spec_(spec), data_(static_cast<const std::byte*>(data)) {}

std::int64_t OperandReader::offset(std::span<const std::int64_t> index) const {
  FOVEAL_ASSERT(static_cast<int>(index.size()) == spec_.rank);
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    FOVEAL_ASSERT(0 <= index[axis] && index[axis] < spec_.shape[axis]);
    sum += index[axis] * spec_.strides[axis];
  }
  return sum;
}

double OperandReader::element(std::int64_t offset) const {
  double value = 0.0;
  visit_dtype(spec_.dtype, [&](auto type) { value = load_element<decltype(type)>(data_, offset); });
  return value;
}

double OperandReader::broadcast_at(std::array<std::int64_t, TensorSpec::kMaxRank> index) const {
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (spec_.shape[axis] == 1) index[axis] = 0;
  }
  return element(offset(index));
}

void OperandReader::read_vector(std::int64_t batch, std::int64_t row, std::int64_t head,
                                std::span<double> values) const {
  if (values.empty()) return;
  const std::int64_t base = rank() == 3 ? offset(std::array<std::int64_t, 3>{row, head, 0})
                                        : offset(std::array<std::int64_t, 4>{batch, row, head, 0});
  const std::int64_t stride = spec_.strides[static_cast<std::size_t>(rank() - 1)];
  visit_dtype(spec_.dtype, [&](auto type) {
    std::int64_t offset = base;
    for (double& value : values) {
      value = load_element<decltype(type)>(data_, offset);
      offset += stride;
    }
  });
}

double OperandReader::at_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return rank() == 2 ? at(head, row) : at(batch, head, row);
}

}  // namespace foveal::reference
