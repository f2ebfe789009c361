#!/usr/bin/env bash
# A compiler launcher for CUDA: keeps what ptxas says of each kernel (-Xptxas -v) as OBJECT.ptxas, and
# prints the rest.
#
#   scripts/keep_ptxas_report.sh [LAUNCHER] nvcc ... -o OBJECT
set -uo pipefail

object=
previous=
for argument in "$@"; do
  [[ $previous == -o ]] && object=$argument
  previous=$argument
done
if [[ $object != *.o ]]; then
  exec "$@"
fi
"$@" 2>"$object.ptxas.new"
code=$?
if [[ $code -eq 0 ]]; then
  grep -E 'Potential Performance Loss' "$object.ptxas.new" >&2
  grep -vE '^ptxas info|bytes stack frame|^ *$' "$object.ptxas.new" >&2
  mv "$object.ptxas.new" "$object.ptxas"
else
  cat "$object.ptxas.new" >&2
  rm -f "$object.ptxas.new" "$object.ptxas"
fi
exit "$code"
