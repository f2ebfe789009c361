#!/usr/bin/env bash
# Lays out the C, C++ and CUDA sources with clang-format 16.
#
#   scripts/format.sh [--check] [FILE ...]     without files: all that git knows or would add
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=(-i)
if [[ ${1:-} == --check ]]; then
  options=(--dry-run --Werror)
  shift
fi
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard --deduplicate -- \
    '*.c' '*.h' '*.cpp' '*.hpp' '*.cu' '*.cuh')
fi
# A file that was removed but not yet committed is still listed.
existing=()
for file in "${files[@]}"; do
  [[ -f $file ]] && existing+=("$file")
done
[[ ${#existing[@]} -eq 0 ]] || clang-format-16 "${options[@]}" "${existing[@]}"
