// A directory of one test's own, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

namespace foveal::tools {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // mkdtemp puts letters of its own into the place of the last six.
    std::string name = testing::TempDir() + "foveal-test-" + std::string(6, 'X');
    EXPECT_NE(::mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }
  [[nodiscard]] std::string read(std::string_view name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Of everything in it, hidden or not.
  [[nodiscard]] std::size_t num_entries() const {
    const std::filesystem::directory_iterator entries(path_);
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  }

 private:
  std::string path_;
};

/// Permissions do not bind root: where a test runs as root, this makes it another user for its
/// lifetime, one who may enter the directory.
class OrdinaryUser {
 public:
  explicit OrdinaryUser(const TemporaryDirectory& directory) {
    if (::geteuid() != 0) return;
    EXPECT_EQ(::chmod(directory.path().c_str(), 0755), 0);
    changed_ = ::seteuid(kNobody) == 0;
    EXPECT_TRUE(changed_);
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
  ~OrdinaryUser() {
    if (!changed_) return;
    EXPECT_EQ(::seteuid(0), 0);
  }

 private:
  static constexpr uid_t kNobody = 65534;
  bool changed_ = false;
};

}  // namespace foveal::tools
