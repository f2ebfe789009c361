// A test problem on a GPU: copies of its host memory, guard bytes included, that go there before a
// run and come back after it, so that the checks of the workbench see what a kernel did there. In a
// build without CUDA, and where there is no GPU, everything here says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <foveal/plan.hpp>
#include <foveal/problem.hpp>

namespace foveal::test {

/// The GPU that the tests run on.
inline constexpr Device kTestGpu = Device::cuda(0);

/// Why no test can run on kTestGpu; empty where they can.
[[nodiscard]] std::string no_gpu_reason();

/// Waits for the GPU and says what went wrong on it since.
[[nodiscard]] Status wait_for_gpu();

/// Bytes of kTestGpu that are free.
[[nodiscard]] std::size_t free_gpu_bytes();

/// The last GPU of this machine: another than kTestGpu where it has several.
[[nodiscard]] std::int32_t last_gpu();

/// The calling thread's current GPU.
[[nodiscard]] std::int32_t current_gpu();

/// Makes a GPU the calling thread's current one, and kTestGpu again at the end.
class CurrentGpu {
 public:
  explicit CurrentGpu(std::int32_t index);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;
};

/// A stream that does not wait for the default stream.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  [[nodiscard]] void* handle() const { return handle_; }
  /// Waits for what was launched.
  [[nodiscard]] Status wait() const;

 private:
  void* handle_ = nullptr;
};

/// Memory of the GPU, at kWorkspaceAlignment, every byte `fill`; from the stream's pool.
class DeviceBuffer {
 public:
  DeviceBuffer(std::size_t bytes, std::uint8_t fill, const DeviceStream& stream);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  [[maybe_unused]] const DeviceStream& stream_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Status status_;
};

/// To the GPU or from it, or within it: whichever the two addresses say. Waits.
[[nodiscard]] Status copy_bytes(void* to, const void* from, std::size_t bytes,
                                const DeviceStream& stream);
[[nodiscard]] Status fill_bytes(void* memory, std::uint8_t value, std::size_t bytes,
                                const DeviceStream& stream);

/// A workspace full of NaN between guard bytes.
class DeviceWorkspace {
 public:
  DeviceWorkspace(std::size_t bytes, const DeviceStream& stream);

  [[nodiscard]] const Status& status() const { return buffer_.status(); }
  [[nodiscard]] void* data() const;
  [[nodiscard]] std::size_t size() const { return bytes_; }
  /// kInternal once a byte beside it has been written.
  [[nodiscard]] Status check_guards() const;

 private:
  const DeviceStream& stream_;
  std::size_t bytes_;
  DeviceBuffer buffer_;
};

/// Host memory that is copied as a whole, both ways: an operand between its guard bytes.
using HostRange = std::span<std::byte>;

/// The operands of a problem on the GPU, at the same place modulo 256 as on the host.
class DeviceCopy {
 public:
  /// What `host` points to outside of `whole` is copied as far as its strides reach; where that is
  /// very far, only its elements are, and only outputs come back.
  DeviceCopy(const AttentionProblem& problem, const AttentionTensors& host,
             std::span<const HostRange> whole, const DeviceStream& stream);

  [[nodiscard]] const Status& status() const { return status_; }
  /// The host's tensors with pointers into the copy.
  [[nodiscard]] const AttentionTensors& tensors() const { return tensors_; }

  [[nodiscard]] Status upload() const;
  /// Inputs come back as well.
  [[nodiscard]] Status download() const;

 private:
  /// Host memory of one or more operands, and where its copy begins.
  struct Piece {
    std::byte* host = nullptr;
    std::size_t bytes = 0;
    std::size_t offset = 0;             ///< In buffer_.
    std::vector<HostRange> parts = {};  ///< What is copied of it; empty: all of it.
    bool comes_back = true;             ///< Copied back after a run.
  };

  void add_foreign(const std::vector<Piece>& foreign);
  void place_pieces();
  [[nodiscard]] std::byte* device_address(const void* host) const;
  [[nodiscard]] Status copy_all(bool to_device) const;

  const DeviceStream& stream_;
  std::vector<Piece> pieces_;
  std::unique_ptr<DeviceBuffer> buffer_;
  AttentionTensors tensors_;
  Status status_;
};

/// Copies the operands to the GPU, runs the plan on a stream of its own with a workspace full of
/// NaN, and copies everything back. kInternal where the kernel failed there or wrote beside its
/// workspace.
[[nodiscard]] Status run_on_gpu(const Plan& planned, const AttentionTensors& host,
                                std::span<const HostRange> whole);

/// Work recorded on a stream, to be run again and again.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Records one run of the plan; fails where it does what a capture forbids.
  [[nodiscard]] Status capture(const Plan& planned, const AttentionTensors& device,
                               const DeviceWorkspace& workspace, const DeviceStream& stream);
  [[nodiscard]] Status replay(const DeviceStream& stream) const;

 private:
  [[maybe_unused]] void* executable_ = nullptr;
};

}  // namespace foveal::test
