#!/usr/bin/env bash
# Runs one step of a longer job quietly: a line when it starts, the time it took, and its output
# only when it fails.
#
#   scripts/step.sh "Building build/cpu" cmake --build build/cpu
set -uo pipefail

title=$1
shift
mkdir -p build/logs
log="build/logs/$(tr -cs 'A-Za-z0-9\n' '-' <<<"$title").log"
printf '%s ... ' "$title"
start=$(date +%s%N)
"$@" >"$log" 2>&1 </dev/null
exit_code=$?
tenths=$((($(date +%s%N) - start) / 100000000))
if [[ $exit_code -eq 0 ]]; then
  printf '%d.%d s\n' $((tenths / 10)) $((tenths % 10))
else
  printf 'failed (exit code %d); the end of %s:\n' "$exit_code" "$log"
  tail -n 80 "$log"
fi
exit "$exit_code"
