#include "tools/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace foveal::tools {
namespace {

Status error_of(const std::string& path, const char* what, int error_number) {
  return Status::io_error(
      fmt::format("{}: {}: {}", path, what, std::generic_category().message(error_number)));
}

/// Closes the descriptor on every way out; the mapping outlives it.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  if (path.empty()) return Status::io_error("the path of the file to read is empty");
  // O_NONBLOCK: opening a pipe without a writer would wait for one.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return error_of(path, "can't be opened", errno);

  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return error_of(path, "can't be examined", errno);
  if (S_ISDIR(info.st_mode)) {
    return Status::io_error(fmt::format("{}: is a directory, not a regular file", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return Status::io_error(fmt::format("{}: is not a regular file", path));
  }
  if (info.st_size == 0) return Status::io_error(fmt::format("{}: is empty", path));

  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) return error_of(path, "can't be mapped into memory", errno);
  return MappedFile(std::span(static_cast<const std::byte*>(address), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace foveal::tools
