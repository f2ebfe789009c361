#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace foveal::test {

/// Sets a variable for one test; it then has its old value again.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, /*overwrite=*/1);
  }
  ~ScopedEnvironment() { old_ ? setenv(name_, old_->c_str(), /*overwrite=*/1) : unsetenv(name_); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace foveal::test
