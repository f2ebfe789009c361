#!/usr/bin/env bash
# In a bundle, on a machine with a GPU (scripts/gpu_bundle.sh makes it run.sh there):
#
#   ./run.sh tests [--kernels cuda_merge] [--slow]   results in out/gpu_tests.xml and .json
#   ./run.sh bench [MANIFEST ...]                    results in out/bench-<manifest>.json
#   ./run.sh foveal ARGUMENTS                        the command, and likewise every other program
#   ./run.sh python3 ARGUMENTS                       with the Python package, where it is there
#
# OUT names another folder for the results.
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$bundle/out}
export LD_LIBRARY_PATH=$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export FOVEAL_SOURCE_DIR=$bundle/share
export PATH=$bundle/bin:$PATH
[[ ! -d $bundle/python ]] || export PYTHONPATH=$bundle/python${PYTHONPATH:+:$PYTHONPATH}

bench() {
  local manifests=("$@") manifest status=0
  [[ $# -gt 0 ]] || manifests=("$bundle"/share/bench/manifests/{decode,prefill,train}.json)
  mkdir -p "$out"
  for manifest in "${manifests[@]}"; do
    foveal bench "$manifest" --device cuda:0 --json "$out/bench-$(basename "$manifest")" || status=$?
  done
  return "$status"
}

case "${1:-}" in
  tests) python3 "$bundle/gpu_tests.py" --bin "$bundle/bin" --out "$out" "${@:2}" ;;
  bench) bench "${@:2}" ;;
  '') sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  *) exec "$@" ;;
esac
