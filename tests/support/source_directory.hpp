// Where the source tree lies: the tests read its examples, manifests and document lengths.
#pragma once

#include <cstdlib>
#include <string>

namespace foveal::test {

/// The tree that the tests were built from, or FOVEAL_SOURCE_DIR where they run without it.
[[nodiscard]] inline std::string source_directory() {
  const char* moved = std::getenv("FOVEAL_SOURCE_DIR");
  return moved != nullptr && *moved != '\0' ? moved : FOVEAL_SOURCE_DIR;
}

}  // namespace foveal::test
