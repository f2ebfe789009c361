// RapidCheck draws from a fixed seed, so that a run can be had again; RC_PARAMS overrides it.
#include <cstdlib>

namespace {

[[maybe_unused]] const int seeded =
    setenv("RC_PARAMS", "seed=20261129 max_success=60", /*overwrite=*/0);

}  // namespace
