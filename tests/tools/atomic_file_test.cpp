#include "tools/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "temporary_directory.hpp"

namespace foveal::tools {
namespace {

Status write_whole(const std::string& path, std::string_view text) {
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.status();
  FOVEAL_RETURN_IF_ERROR(file->write(text));
  return file->commit();
}

mode_t permissions_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

/// Both ways of asking, which must agree, and the directory as it was.
std::string refusal_of(const std::string& path) {
  const Status created = AtomicFile::create(path).status();
  const Status checked = check_writable(path);
  EXPECT_EQ(created.code(), StatusCode::kIoError) << path;
  EXPECT_EQ(checked.message(), created.message());
  return created.message();
}

TEST(AtomicFile, AppearsWithItsContentsAtCommit) {
  const TemporaryDirectory directory;
  Result<AtomicFile> file = AtomicFile::create(directory.file("out"));
  ASSERT_TRUE(file) << file.status().message();
  ASSERT_TRUE(file->write("first,").is_ok());
  ASSERT_TRUE(file->write("second").is_ok());
  EXPECT_FALSE(std::filesystem::exists(directory.file("out")));
  ASSERT_TRUE(file->commit().is_ok());
  EXPECT_EQ(directory.read("out"), "first,second");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(AtomicFile, IsUsableByOthersAsTheUmaskSays) {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(0027);
  EXPECT_TRUE(write_whole(directory.file("out"), "x").is_ok());
  ::umask(before);
  EXPECT_EQ(permissions_of(directory.file("out")), 0640u);
}

TEST(AtomicFile, ReplacesAFileAndKeepsItsPermissions) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("out", "a much longer old text");
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  ASSERT_TRUE(write_whole(path, "new").is_ok());
  EXPECT_EQ(directory.read("out"), "new");
  EXPECT_EQ(permissions_of(path), 0604u);
}

TEST(AtomicFile, WritesThroughASymbolicLink) {
  const TemporaryDirectory directory;
  directory.write("real", "old");
  std::filesystem::create_symlink("real", directory.file("link"));
  ASSERT_TRUE(write_whole(directory.file("link"), "new").is_ok());
  EXPECT_TRUE(std::filesystem::is_symlink(directory.file("link")));
  EXPECT_EQ(directory.read("real"), "new");
}

TEST(AtomicFile, TakesARelativePathAndTheLongestName) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const std::string name(255, 'n');
  EXPECT_TRUE(write_whole(name, "x").is_ok());
  std::filesystem::current_path(before);
  EXPECT_EQ(directory.read(name), "x");
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TemporaryDirectory directory;
  directory.write("out", "old");
  {
    Result<AtomicFile> file = AtomicFile::create(directory.file("out"));
    ASSERT_TRUE(file && file->write("half of the new").is_ok());
    EXPECT_EQ(directory.num_entries(), 2u);
  }
  EXPECT_EQ(directory.num_entries(), 1u);
  EXPECT_EQ(directory.read("out"), "old");
}

TEST(AtomicFile, MovesAsOneOwner) {
  const TemporaryDirectory directory;
  std::optional<AtomicFile> kept;
  {
    Result<AtomicFile> file = AtomicFile::create(directory.file("out"));
    Result<AtomicFile> other = AtomicFile::create(directory.file("other"));
    ASSERT_TRUE(file && other);
    kept = *std::move(other);
    *kept = *std::move(file);
  }
  ASSERT_TRUE(kept->write("x").is_ok());
  ASSERT_TRUE(kept->commit().is_ok());
  EXPECT_EQ(directory.read("out"), "x");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(AtomicFile, IsClosedAfterCommit) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  Result<AtomicFile> file = AtomicFile::create(path);
  ASSERT_TRUE(file && file->commit().is_ok());
  EXPECT_EQ(file->write("more").message(), path + ": can't be written: the file is closed already");
  EXPECT_EQ(file->commit().message(), path + ": can't be written: the file is closed already");
}

/// Files may not grow past a limit while it lives; writing then fails as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(AtomicFile, LeavesNothingWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("out", "old");
  {
    const FileSizeLimit limit(1000);
    Result<AtomicFile> file = AtomicFile::create(path);
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->write(std::string(600, 'x')).is_ok());
    EXPECT_EQ(file->write(std::string(600, 'x')).message(),
              path + ": writing failed: File too large");
    EXPECT_EQ(directory.num_entries(), 1u);  // gone at once, not with the object
    EXPECT_FALSE(file->commit().is_ok());
  }
  EXPECT_EQ(directory.read("out"), "old");
}

TEST(AtomicFile, LeavesNothingWhenTheTargetBecameADirectory) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  Result<AtomicFile> file = AtomicFile::create(path);
  ASSERT_TRUE(file);
  ASSERT_TRUE(std::filesystem::create_directory(path));
  EXPECT_EQ(file->commit().message(), path + ": renaming failed: Is a directory");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(AtomicFile, RefusesATargetThatIsNoFile) {
  const TemporaryDirectory directory;
  EXPECT_EQ(refusal_of(""), "the path of the file to write is empty");
  EXPECT_EQ(refusal_of(directory.path()),
            directory.path() + ": can't be written: it is a directory");
  EXPECT_EQ(refusal_of(directory.file("absent/")),
            directory.file("absent/") + ": can't be written: directory " +
                directory.file("absent") + " does not exist");
  EXPECT_EQ(refusal_of("/dev/null"),
            "/dev/null: can't be written: it exists and is not a regular file");
  const std::string link = directory.file("link");
  std::filesystem::create_symlink("absent", link);
  EXPECT_EQ(refusal_of(link), link + ": can't be written: it is a symbolic link to nothing");
  const std::string loop = directory.file("loop");
  std::filesystem::create_symlink("loop", loop);
  EXPECT_EQ(refusal_of(loop), loop + ": can't be written: Too many levels of symbolic links");
  EXPECT_EQ(directory.num_entries(), 2u);
}

TEST(AtomicFile, RefusesADirectoryThatIsNotThere) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("absent/out");
  EXPECT_EQ(refusal_of(path),
            path + ": can't be written: directory " + directory.file("absent") + " does not exist");
  const std::string inside_a_file = directory.write("f", "x") + "/out";
  EXPECT_EQ(refusal_of(inside_a_file), inside_a_file + ": can't be written: Not a directory");
  const std::string long_name = directory.file(std::string(256, 'n'));
  EXPECT_EQ(refusal_of(long_name), long_name + ": can't be written: File name too long");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(AtomicFile, RefusesWithoutPermission) {
  const TemporaryDirectory directory;
  const std::string read_only = directory.write("read-only", "x");
  ASSERT_EQ(::chmod(read_only.c_str(), 0444), 0);
  const std::string closed = directory.file("closed");
  ASSERT_TRUE(std::filesystem::create_directory(closed));
  ASSERT_EQ(::chmod(closed.c_str(), 0555), 0);
  const OrdinaryUser user(directory);
  EXPECT_EQ(refusal_of(read_only), read_only + ": can't be written: Permission denied");
  EXPECT_EQ(refusal_of(closed + "/out"), closed + "/out: can't be written: Permission denied");
}

TEST(CheckWritable, LeavesNothingBehind) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(check_writable(directory.file("out")).is_ok());
  EXPECT_EQ(directory.num_entries(), 0u);
  const std::string path = directory.write("out", "old");
  EXPECT_TRUE(check_writable(path).is_ok());
  EXPECT_EQ(directory.read("out"), "old");
  EXPECT_EQ(directory.num_entries(), 1u);
}

}  // namespace
}  // namespace foveal::tools
