// What the commands need of a GPU: memory, a stream, times by events, graphs. In a build without
// CUDA opening a session says so, and nothing else here is reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <foveal/status.hpp>

namespace foveal::tools {

/// Memory of a GPU; data() is null when there are no bytes.
class GpuBuffer {
 public:
  GpuBuffer() = default;

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  friend class GpuSession;
  struct Release {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Release> data_;
  std::size_t size_ = 0;
};

/// Launches that were recorded once and run again with one call.
class GpuGraph {
 public:
  GpuGraph() = default;

 private:
  friend class GpuSession;
  struct Release {
    void operator()(void* executable) const;
  };
  std::unique_ptr<void, Release> executable_;
};

/// A GPU that is the thread's current one, and a stream of it that everything here goes to.
class GpuSession {
 public:
  static Result<std::unique_ptr<GpuSession>> open(std::int32_t index);
  ~GpuSession();
  GpuSession(const GpuSession&) = delete;
  GpuSession& operator=(const GpuSession&) = delete;

  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] std::int64_t l2_bytes() const { return l2_bytes_; }

  /// `what` is named in the message.
  Result<GpuBuffer> allocate(std::int64_t bytes, std::string_view what);
  /// Between host and GPU, either way, or within the GPU; waits.
  Status copy(void* to, const void* from, std::size_t bytes);

  /// Waits for what was launched, and says what went wrong.
  Status wait();
  /// Microseconds on the GPU from before the launches to after them; waits.
  Result<double> time_us(const std::function<Status()>& launch);

  Result<GpuGraph> record(const std::function<Status()>& launch);
  Status launch(const GpuGraph& graph);

  /// Bytes read and written by a copy within the GPU's memory, in 1e9 a second: the best of ten.
  Result<double> measure_copy_gbs();

 private:
  GpuSession() = default;

  void* stream_ = nullptr;
  [[maybe_unused]] void* begin_ = nullptr;  ///< Events.
  [[maybe_unused]] void* end_ = nullptr;
  std::int64_t l2_bytes_ = 0;
};

}  // namespace foveal::tools
