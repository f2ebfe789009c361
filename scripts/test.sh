#!/usr/bin/env bash
# Runs the tests of a test preset: of passing tests only their number is printed.
#
#   scripts/test.sh <test preset> [<ctest option> ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
ctest=(ctest --preset "$preset" --parallel "${JOBS:-$(nproc)}" "$@")
if [[ -t 1 ]]; then
  "${ctest[@]}" --progress
else
  "${ctest[@]}" | { grep --line-buffered -vE '^ +Start +[0-9]+:|\.\.\. +Passed +[0-9.]+ sec$' || true; }
fi
