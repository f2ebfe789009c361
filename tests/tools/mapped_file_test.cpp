#include "tools/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "temporary_directory.hpp"

namespace foveal::tools {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string message_of(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  EXPECT_EQ(file.status().code(), StatusCode::kIoError) << path;
  return file.status().message();
}

TEST(MappedFile, HoldsTheWholeFile) {
  const TemporaryDirectory directory;
  const std::string text(70'000, 'x');
  const Result<MappedFile> file = MappedFile::open(directory.write("f", text));
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ(text_of(*file), text);
}

TEST(MappedFile, BytesStayWhereTheyAreWhenMoved) {
  const TemporaryDirectory directory;
  Result<MappedFile> file = MappedFile::open(directory.write("f", "one"));
  Result<MappedFile> other = MappedFile::open(directory.write("g", "two"));
  ASSERT_TRUE(file && other);
  const std::byte* address = file->bytes().data();
  MappedFile moved = *std::move(file);
  EXPECT_EQ(moved.bytes().data(), address);
  moved = *std::move(other);
  EXPECT_EQ(text_of(moved), "two");
}

TEST(MappedFile, RefusesWhatIsNotAReadableRegularFile) {
  const TemporaryDirectory directory;
  EXPECT_EQ(message_of(""), "the path of the file to read is empty");
  EXPECT_EQ(message_of(directory.file("absent")),
            directory.file("absent") + ": can't be opened: No such file or directory");
  EXPECT_EQ(message_of(directory.path()),
            directory.path() + ": is a directory, not a regular file");
  EXPECT_EQ(message_of(directory.write("empty", "")), directory.file("empty") + ": is empty");

  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(message_of(pipe), pipe + ": is not a regular file");
  EXPECT_EQ(message_of("/dev/null"), "/dev/null: is not a regular file");
}

TEST(MappedFile, RefusesAFileWithoutPermission) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("secret", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0000), 0);
  const OrdinaryUser user(directory);
  EXPECT_EQ(message_of(path), path + ": can't be opened: Permission denied");
}

}  // namespace
}  // namespace foveal::tools
