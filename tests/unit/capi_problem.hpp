// A small forward problem in C: 3 queries over 8 keys, 4 query heads on 2, whose answer is known.
// All queries are 0, so a row of out is the mean of the values that it sees, and v[j] = j.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/foveal.h>

namespace foveal::test {

/// A float32 (or other) tensor with memory of its own.
template <class T>
struct CTensor {
  std::vector<T> values;
  std::vector<std::int64_t> shape;
  DLTensor view{};

  CTensor(std::vector<std::int64_t> shape_in, DLDataType dtype) : shape(std::move(shape_in)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    values.assign(static_cast<std::size_t>(count), T{});
    view.data = values.data();
    view.device = {kDLCPU, 0};
    view.ndim = static_cast<int>(shape.size());
    view.dtype = dtype;
    view.shape = shape.data();
  }
  CTensor(const CTensor&) = delete;
  CTensor& operator=(const CTensor&) = delete;
};

inline constexpr DLDataType kFp32{kDLFloat, 32, 1};
inline constexpr DLDataType kFp64{kDLFloat, 64, 1};
inline constexpr DLDataType kInt32Type{kDLInt, 32, 1};

struct CProblem {
  static constexpr std::int64_t kRows = 3, kKeys = 8, kHeadsQ = 4, kHeadsK = 2, kDim = 16;

  CTensor<float> q{{1, kRows, kHeadsQ, kDim}, kFp32}, k{{1, kKeys, kHeadsK, kDim}, kFp32};
  CTensor<float> v{{1, kKeys, kHeadsK, kDim}, kFp32}, out{{1, kRows, kHeadsQ, kDim}, kFp32};
  CTensor<float> lse{{1, kHeadsQ, kRows}, kFp32};
  foveal_attention attention{};

  CProblem() {
    attention.struct_size = sizeof attention;
    attention.q = &q.view;
    attention.k = &k.view;
    attention.v = &v.view;
    attention.out = &out.view;
    attention.lse = &lse.view;
    constexpr auto kRow = static_cast<std::size_t>(kHeadsK * kDim);
    for (std::size_t i = 0; i < v.values.size(); ++i) {
      v.values[i] = static_cast<float>(i / kRow);
      k.values[i] = static_cast<float>(i % 7) - 3.0f;
    }
  }

  /// Keys that row i sees.
  [[nodiscard]] std::int64_t seen(std::int64_t i) const {
    return attention.causal != 0 ? kKeys - kRows + i + 1 : kKeys;
  }

  /// out and lse are what the problem asks for.
  void expect_right() const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const auto count = static_cast<float>(seen(i));
      for (std::int64_t h = 0; h < kHeadsQ; ++h) {
        EXPECT_NEAR(lse.values[static_cast<std::size_t>(h * kRows + i)], std::log(count), 1e-6);
        const auto first = static_cast<std::size_t>((i * kHeadsQ + h) * kDim);
        for (std::size_t d = 0; d < static_cast<std::size_t>(kDim); ++d) {
          EXPECT_NEAR(out.values[first + d], (count - 1) / 2, 1e-6) << "row " << i << " head " << h;
        }
      }
    }
  }
};

/// Memory for a plan to run in.
class CWorkspace {
 public:
  explicit CWorkspace(const foveal_plan* plan)
      : bytes_(foveal_plan_workspace_bytes(plan)), storage_(bytes_ + FOVEAL_WORKSPACE_ALIGNMENT) {}

  [[nodiscard]] void* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    constexpr std::uintptr_t kAlignment = FOVEAL_WORKSPACE_ALIGNMENT;
    return storage_.data() + (kAlignment - address % kAlignment) % kAlignment;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<std::byte> storage_;
};

/// A plan that is released at the end of its scope.
class CPlan {
 public:
  explicit CPlan(const foveal_attention& attention, const foveal_device* device = nullptr) {
    status = foveal_plan_create(&attention, device, &plan);
    EXPECT_EQ(status, FOVEAL_OK) << foveal_last_error();
  }
  ~CPlan() { foveal_plan_release(plan); }
  CPlan(const CPlan&) = delete;
  CPlan& operator=(const CPlan&) = delete;

  foveal_plan* plan = nullptr;
  foveal_status status = FOVEAL_INTERNAL;
};

/// A call failed with this code and a message that has each of the pieces.
inline void expect_failure(foveal_status status, foveal_status expected,
                           const std::vector<std::string>& pieces) {
  EXPECT_EQ(status, expected) << foveal_last_error();
  const std::string message = foveal_last_error();
  for (const std::string& piece : pieces) {
    EXPECT_NE(message.find(piece), std::string::npos) << piece << " is not in: " << message;
  }
}

}  // namespace foveal::test
