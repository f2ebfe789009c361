#!/usr/bin/env bash
# Packs what a machine with a GPU, its driver and Python needs to run the tests and benchmarks of a
# build: programs, the shared libraries that they need beside glibc, inputs, scripts, and the Python
# package where the build has it. The result is build/gpu-bundle and build/gpu-bundle.tar.gz.
#
#   scripts/gpu_bundle.sh [BUILD_DIR]     (build/bundle)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:-build/bundle}
bundle=build/gpu-bundle
max_megabytes=60
programs=(foveal foveal_kernel_tests foveal_property_tests foveal_tools_tests)
optional=(foveal_unit_tests foveal_decode_sweep foveal_launch_cost
          example_c_decode_cache example_cpp_decode_cache)

rm -rf "$bundle" "$bundle.tar.gz"
mkdir -p "$bundle"/{bin,lib,share/bench,share/examples}
for program in "${programs[@]}"; do install -m 755 -s "$build/bin/$program" "$bundle/bin/"; done
for program in "${optional[@]}"; do
  [[ ! -x $build/bin/$program ]] || install -m 755 -s "$build/bin/$program" "$bundle/bin/"
done

# Everything but glibc, which binaries of an older one run on, and the driver.
keep_libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda)\.so' || true
}
mapfile -t libraries < <(keep_libraries "$bundle"/bin/* "$build"/lib/libfoveal.so)
for library in "${libraries[@]}" "$build"/lib/libfoveal.so.?; do
  install -m 644 -s "$library" "$bundle/lib/"
done

cp -r bench/manifests bench/data "$bundle/share/bench/"
cp -r examples/data "$bundle/share/examples/"
install -m 755 scripts/gpu_tests.py scripts/gpu_run.sh "$bundle/"
mv "$bundle/gpu_run.sh" "$bundle/run.sh"
if grep -q '^FOVEAL_PYTHON:BOOL=ON' "$build/CMakeCache.txt"; then
  DESTDIR='' cmake --install "$build" --component python --prefix "$bundle/python" >/dev/null
  for library in "$bundle"/python/foveal/lib/*.so.?; do
    ln -sf "../../../lib/$(basename "$library")" "$library"
  done
  rm -f "$bundle"/python/foveal/lib/libfoveal.so.*.*
  mkdir -p "$bundle/share/tests"
  cp -r tests/python "$bundle/share/tests/"
fi
find "$bundle" -name __pycache__ -prune -exec rm -r {} +

tar -C build -czf "$bundle.tar.gz" "$(basename "$bundle")"
megabytes=$(du -m "$bundle.tar.gz" | cut -f1)
echo "$bundle: $(du -sm "$bundle" | cut -f1) MB, $bundle.tar.gz: $megabytes MB"
if [[ $megabytes -gt $max_megabytes ]]; then
  echo "$bundle.tar.gz is larger than $max_megabytes MB" >&2
  exit 1
fi
