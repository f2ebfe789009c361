#!/usr/bin/env bash
# Configures a preset where that has not been done, and builds it.
#
#   scripts/build.sh <preset> [<target> ...]
#
# FOVEAL_CUDA_ARCHS, where set, is what a new build with CUDA contains.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
# Ninja configures again by itself when a CMake file or the list of sources changes, but does not
# look at the presets.
if [[ ! -e build/$preset/build.ninja || CMakePresets.json -nt build/$preset/build.ninja ]]; then
  scripts/step.sh "Configuring build/$preset" cmake --preset "$preset" \
    ${FOVEAL_CUDA_ARCHS:+"-DFOVEAL_CUDA_ARCHS=$FOVEAL_CUDA_ARCHS"}
fi
grep -h '^FOVEAL_CUDA_STATUS:' "build/$preset/CMakeCache.txt" | sed 's/^[^=]*=/CUDA: /'
build=(cmake --build "build/$preset" --parallel "${JOBS:-$(nproc)}")
if [[ $# -gt 0 ]]; then
  build+=(--target "$@")
fi
if [[ -t 1 ]]; then
  "${build[@]}"  # Ninja keeps its progress on one line of a terminal.
else
  scripts/step.sh "Building build/$preset" "${build[@]}"
fi
