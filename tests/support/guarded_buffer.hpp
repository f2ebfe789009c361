// Memory between guard bytes: a write before or after it is seen, also where no sanitizer runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace foveal::test {

class GuardedBuffer {
 public:
  static constexpr std::size_t kGuardBytes = 1024;
  static constexpr std::size_t kAlignment = 256;

  /// `bytes` bytes at kAlignment, all of value `fill`.
  explicit GuardedBuffer(std::size_t bytes = 0, std::uint8_t fill = 0);

  [[nodiscard]] std::byte* data() { return begin_; }
  [[nodiscard]] const std::byte* data() const { return begin_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

  /// The memory with the guard bytes before and after it.
  [[nodiscard]] std::span<std::byte> with_guards() {
    return {begin_ - kGuardBytes, bytes_ + 2 * kGuardBytes};
  }
  [[nodiscard]] std::span<const std::byte> with_guards() const {
    return {begin_ - kGuardBytes, bytes_ + 2 * kGuardBytes};
  }

  /// False once anything has been written outside.
  [[nodiscard]] bool guards_intact() const;

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace foveal::test
