// Memory for operands and workspaces: aligned as a plan asks for, and an error instead of an
// exception where there is none left.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include <foveal/plan.hpp>
#include <foveal/status.hpp>

namespace foveal::tools {

/// Owns zeroed bytes; data() is null when there are none.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  /// `what` is named in the message: "out of memory: out needs 4096 bytes".
  static Result<AlignedBuffer> allocate(std::int64_t bytes, std::string_view what) {
    AlignedBuffer buffer;
    if (bytes == 0) return buffer;
    buffer.size_ = static_cast<std::size_t>(bytes);
    buffer.data_.reset(static_cast<std::byte*>(
        ::operator new[](buffer.size_, std::align_val_t{kWorkspaceAlignment}, std::nothrow)));
    if (!buffer.data_) {
      return Status::out_of_memory(fmt::format("out of memory: {} needs {} bytes", what, bytes));
    }
    std::memset(buffer.data_.get(), 0, buffer.size_);
    return buffer;
  }

  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] const std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Release {
    void operator()(std::byte* data) const {
      ::operator delete[](data, std::align_val_t{kWorkspaceAlignment});
    }
  };
  std::unique_ptr<std::byte[], Release> data_;
  std::size_t size_ = 0;
};

}  // namespace foveal::tools
