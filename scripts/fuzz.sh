#!/usr/bin/env bash
# Runs every fuzzer of build/fuzz for a while, starting from its corpus. What it finds is kept out of
# the tree; an input that fails stays in build/fuzz/findings.
#
#   scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-20}
mkdir -p build/fuzz/findings
shopt -s nullglob
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
count=0
for source in tools/fuzz/*_fuzzer.cpp; do
  fuzzer=$(basename "$source" .cpp)
  name=${fuzzer%_fuzzer}
  found=build/fuzz/found/$name
  mkdir -p "$found"
  inputs=("$found")
  [[ -d tools/fuzz/corpus/$name ]] && inputs+=("tools/fuzz/corpus/$name")
  scripts/step.sh "Fuzzing $name for $seconds s" "build/fuzz/bin/$fuzzer" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$name-" "${inputs[@]}"
  count=$((count + 1))
done
echo "$count fuzzers, no finding"
