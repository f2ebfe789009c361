#include "support/guarded_buffer.hpp"

#include <algorithm>
#include <cstring>

namespace foveal::test {
namespace {

constexpr std::byte kGuard{0xA7};

bool all_guard(const std::byte* begin, std::size_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte byte) { return byte == kGuard; });
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, std::uint8_t fill)
    : storage_(new std::byte[bytes + 2 * kGuardBytes + kAlignment]), bytes_(bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.get()) + kGuardBytes;
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  begin_ = storage_.get() + (aligned - reinterpret_cast<std::uintptr_t>(storage_.get()));
  std::memset(begin_ - kGuardBytes, static_cast<int>(kGuard), kGuardBytes);
  std::memset(begin_ + bytes, static_cast<int>(kGuard), kGuardBytes);
  std::memset(begin_, fill, bytes);
}

bool GuardedBuffer::guards_intact() const {
  return all_guard(begin_ - kGuardBytes, kGuardBytes) && all_guard(begin_ + bytes_, kGuardBytes);
}

}  // namespace foveal::test
