#include "tools/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

namespace foveal::tools {
namespace {

Status refusal(const std::string& path, std::string_view why) {
  return Status::io_error(fmt::format("{}: can't be written: {}", path, why));
}

Status refusal(const std::string& path, int error_number) {
  return refusal(path, std::generic_category().message(error_number));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

struct Target {
  std::string path;                   // no symbolic link
  std::optional<mode_t> permissions;  // of the file that is there now
};

/// Where the bytes will end, or why they can't: a rename would replace a device or a pipe by a
/// file, and a read-only file without a word, so both are refused here.
Result<Target> resolve(const std::string& path) {
  if (path.empty()) return Status::io_error("the path of the file to write is empty");
  Target target{.path = path, .permissions = std::nullopt};

  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr),
                                                      &std::free);
    if (!real && errno == ENOENT) return refusal(path, "it is a symbolic link to nothing");
    if (!real) return refusal(path, errno);
    target.path = real.get();
  }
  if (::stat(target.path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return refusal(path, "it is a directory");
    if (!S_ISREG(info.st_mode)) return refusal(path, "it exists and is not a regular file");
    if (::access(target.path.c_str(), W_OK) != 0) return refusal(path, errno);
    target.permissions = info.st_mode & 0777;
    return target;
  }
  if (errno != ENOENT) return refusal(path, errno);

  const std::string directory = directory_of(path);
  if (::stat(directory.c_str(), &info) != 0) {
    return refusal(path, fmt::format("directory {} does not exist", directory));
  }
  if (path.back() == '/') return refusal(path, "it names a directory");
  return target;
}

/// Short whatever the target's name is, so that it never exceeds the file system's limit.
std::string temporary_name(const std::string& directory) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}/.foveal-{}-{}.tmp", directory, ::getpid(), counter++);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  Result<Target> target = resolve(path);
  if (!target) return target.status();

  AtomicFile file(path, std::move(target->path));
  const std::string directory = directory_of(file.target_);
  do {  // a name left by a killed process of the same id is skipped
    std::string temporary = temporary_name(directory);
    file.fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0) file.temporary_ = std::move(temporary);
  } while (file.fd_ < 0 && errno == EEXIST);
  if (file.fd_ < 0) return refusal(path, errno);

  if (target->permissions && ::fchmod(file.fd_, *target->permissions) != 0) {
    return file.fail("its permissions can't be kept", errno);
  }
  return file;
}

AtomicFile::AtomicFile(std::string path, std::string target)
    : path_(std::move(path)), target_(std::move(target)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

Status AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0) return refusal(path_, "the file is closed already");
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail("writing failed", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return Status::ok();
}

Status AtomicFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status AtomicFile::commit() {
  if (fd_ < 0) return refusal(path_, "the file is closed already");
  if (::fsync(fd_) != 0) return fail("flushing it to the disk failed", errno);
  if (::close(std::exchange(fd_, -1)) != 0) return fail("closing it failed", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return fail("renaming failed", errno);
  temporary_.clear();

  // The name is in place. That it survives a power cut is asked for, and not every file system
  // can do it, so the answer does not turn a written file into an error.
  const int directory = ::open(directory_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
  return Status::ok();
}

Status AtomicFile::fail(const char* what, int error_number) {
  discard();
  return Status::io_error(
      fmt::format("{}: {}: {}", path_, what, std::generic_category().message(error_number)));
}

void AtomicFile::discard() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

Status check_writable(const std::string& path) { return AtomicFile::create(path).status(); }

Status check_writable_beside(const std::string& path, const std::string& input) {
  std::error_code ignored;  // where one of them is not there, they differ
  if (std::filesystem::equivalent(path, input, ignored)) {
    return Status::invalid_argument(
        fmt::format("{}: the results would replace the input {}", path, input));
  }
  return check_writable(path);
}

}  // namespace foveal::tools
