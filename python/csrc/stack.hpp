// The dispatcher's stack, read in the order of a schema. The stable ABI's boxed convention by hand:
// attention has more arguments than a function should.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/csrc/stable/stableivalue_conversions.h>

#include "operand.hpp"

namespace foveal::python {

/// Takes the arguments from the left. Each read owns what it takes off, and none throws, so that an
/// error comes after all have been taken.
class ArgumentReader {
 public:
  explicit ArgumentReader(const StableIValue* stack) : next_(stack) {}

  Tensor tensor() { return take<Tensor>(); }
  OptionalTensor optional_tensor() { return take<OptionalTensor>(); }
  bool boolean() { return take<bool>(); }
  std::int64_t integer() { return take<std::int64_t>(); }
  double number() { return take<double>(); }
  std::optional<double> optional_number() { return take<std::optional<double>>(); }

 private:
  template <class T>
  T take() {
    return torch::stable::detail::to<T>(*next_++);
  }

  const StableIValue* next_;
};

/// Puts results where the arguments were.
template <class... Results>
void put_results(StableIValue* stack, const Results&... results) {
  ((*stack++ = torch::stable::detail::from(results)), ...);
}

}  // namespace foveal::python
