// Output files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <foveal/status.hpp>

namespace foveal::tools {

/// A file under a temporary name in the target's directory until commit() renames it. Without a
/// successful commit the temporary is removed and an earlier file of the target's name is as it
/// was. A symbolic link is written through; an earlier file's permission bits are kept.
///
///   Result<AtomicFile> file = AtomicFile::create("out.json");
///   if (!file) return file.status();
///   FOVEAL_RETURN_IF_ERROR(file->write(text));
///   return file->commit();
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends. After an error the file can only be dropped.
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);

  /// Data to the disk, then the name. Called once.
  Status commit();

 private:
  AtomicFile(std::string path, std::string target);
  Status fail(const char* what, int error_number);
  void discard();

  std::string path_;       // as the caller gave it, for messages
  std::string target_;     // behind symbolic links
  std::string temporary_;  // empty once renamed or removed
  int fd_ = -1;
};

/// Whether AtomicFile::create(path) would succeed now: for commands to call before any work.
/// Leaves nothing behind.
Status check_writable(const std::string& path);

/// The same for results of `input`, which must not be the file that they replace.
Status check_writable_beside(const std::string& path, const std::string& input);

}  // namespace foveal::tools
