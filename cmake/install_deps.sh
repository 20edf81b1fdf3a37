#!/usr/bin/env bash
# Installs what the build, the tests and the demo need and this machine lacks. Looks for features, not for packages, so
# that tools from elsewhere count. LINT=1: what `make lint` needs as well.
set -euo pipefail

has_program() { command -v "$1" >/dev/null; }

# True if the compiler has one of the headers, in its own folders or in a prefix that CMake is told of.
has_header() {
  local flags=() prefix prefixes=()
  IFS=: read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do flags+=("-I$prefix/include"); done
  for header in "$@"; do
    if echo "#include <$header>" | "${CXX:-g++}" "${flags[@]}" -std=c++20 -E -x c++ - >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

# required: without these nothing is built. mpi: without these the runs under mpirun are left out.
look() {
  required=()
  mpi=()
  has_program "${CXX:-g++}" || required+=(g++)
  has_program cmake || required+=(cmake)
  has_program ninja || required+=(ninja-build)
  has_program git || required+=(git)
  { has_program pkg-config || has_program pkgconf; } || required+=(pkg-config)
  pkg-config --exists hwloc 2>/dev/null || required+=(libhwloc-dev)
  has_header fmt/format.h || required+=(libfmt-dev)
  has_header catch2/catch.hpp catch2/catch_all.hpp || required+=(catch2)
  has_header CLI/CLI.hpp || required+=(libcli11-dev)
  has_header nlohmann/json.hpp || required+=(nlohmann-json3-dev)
  if [ -n "${LINT:-}" ]; then
    has_program clang-format || required+=(clang-format)
    has_program clang-tidy || required+=(clang-tidy)
  fi
  has_program mpirun || mpi+=(openmpi-bin)
  has_program mpicc || mpi+=(libopenmpi-dev)
}

look
if [ $((${#required[@]} + ${#mpi[@]})) -eq 0 ]; then exit 0; fi

packages=("${required[@]}" "${mpi[@]}")
if has_program apt-get && { [ "$(id -u)" -eq 0 ] || has_program sudo; }; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
  echo "Installing ${packages[*]}"
  # A fresh machine has no package lists yet, an old one may have lists of packages that are gone.
  if ! "${install[@]}" "${packages[@]}" 2>/dev/null; then
    "${as_root[@]}" apt-get update || true
    "${install[@]}" "${packages[@]}" || true
  fi
  look
fi

if [ ${#required[@]} -gt 0 ]; then
  echo "Missing, by the names of Debian's packages: ${required[*]}" >&2
  echo "They could not be installed here (that takes apt-get, a network, and root or sudo). Install them and run again." >&2
  exit 1
fi
if [ ${#mpi[@]} -gt 0 ]; then echo "No MPI (${mpi[*]}): what runs under mpirun is left out." >&2; fi
