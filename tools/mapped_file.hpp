// A whole regular file, mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <foveal/status.hpp>

namespace foveal::tools {

/// Owns the mapping; bytes() stays valid, at the same address, until the object that was moved to
/// last is destroyed. A file that another process truncates meanwhile faults on access, as every
/// mapping does.
class MappedFile {
 public:
  /// Refuses what is missing, unreadable, empty, or not a regular file (a pipe is not waited on).
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace foveal::tools
