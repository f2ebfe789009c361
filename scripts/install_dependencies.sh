#!/usr/bin/env bash
# Installs the Debian packages that a target of the Makefile needs and that are missing.
#
#   scripts/install_dependencies.sh run | test | format | fuzz | ci
#
# Says what it installs, asks nothing, uses sudo only where it is not root, and does nothing when
# all is there.
set -euo pipefail

# A command that is on PATH is taken as it is, wherever it came from.
need_command() {  # need_command <command> <package>
  command -v "$1" >/dev/null || missing+=("$2")
}

# Libraries have no command to look for: dpkg knows.
need_packages() {
  local package installed
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    [[ $installed == *" installed:$package "* ]] || missing+=("$package")
  done
}

need_build() {
  need_command make make
  need_command g++ g++
  need_command cmake cmake
  need_command ninja ninja-build
  need_command pkg-config pkg-config
  need_packages libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libdlpack-dev
}

need_test() {
  need_build
  need_packages libgtest-dev libgmock-dev librapidcheck-dev
  need_command python3 python3
  # Asked only while there is no environment yet: starting an interpreter takes its time.
  if [[ ! -x build/venv/bin/python ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=(python3-venv)
  fi
}

need_clang() {
  need_command clang-16 clang-16
  need_packages libclang-rt-16-dev
}

apt_install() {
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "Not root and no sudo: please have these installed: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  local apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  local install=("${apt_get[@]}" install --no-install-recommends "${missing[@]}")
  # The package lists may be absent (a fresh container) or too old to fetch by.
  if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
    echo "  reading the package lists"
    "${apt_get[@]}" update
    "${install[@]}" >/dev/null
  elif ! "${install[@]}" >/dev/null 2>&1; then
    echo "  reading the package lists anew"
    "${apt_get[@]}" update
    "${install[@]}" >/dev/null
  fi
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
missing=()
if ! command -v dpkg-query >/dev/null; then
  echo "No dpkg here: packages are not checked; CMake names what it does not find."
  exit 0
fi
case "${1:-}" in
  run) need_build ;;
  test) need_test ;;
  format) need_command clang-format-16 clang-format-16 ;;
  fuzz) need_build; need_clang ;;
  ci)
    need_test
    need_clang
    need_packages libomp-16-dev
    need_command cargo cargo
    need_command clang-format-16 clang-format-16
    ;;
  *)
    echo "usage: $0 run | test | format | fuzz | ci" >&2
    exit 2
    ;;
esac
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "Installing ${missing[*]}"
  apt_install
fi
