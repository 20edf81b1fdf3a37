#!/usr/bin/env bash
# clang-format on all files, and clang-tidy on those of the library that differ from the main branch or, on it, from the
# commit before ("changed"; the whole library where there is none), or on all.
# Usage: lint.sh BUILD changed|all JOBS, or lint.sh format, which puts the format right.
set -euo pipefail

for program in clang-format clang-tidy git; do
  if ! command -v "$program" >/dev/null; then
    echo "make lint needs $program; LINT=1 make deps installs it." >&2
    exit 1
  fi
done

mapfile -t files < <(git ls-files -co --exclude-standard -- '*.c' '*.cc' '*.h' '*.cu' '*.cuh' | sort -u |
  while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done)
if [ "$1" = format ]; then exec clang-format -i "${files[@]}"; fi

build=$1 which=$2 jobs=$3
failed=0
clang-format --dry-run -Werror "${files[@]}" || failed=1

library=('base/*.cc' 'transport/*.cc' 'kernels/*.cc' 'tuner/*.cc' 'lib/*.cc')
base=$(git rev-parse --verify -q origin/main || true)
if [ -z "$base" ] || [ "$base" = "$(git rev-parse --verify -q HEAD)" ]; then base=$(git rev-parse --verify -q HEAD~1 || true); fi
if [ "$which" = all ]; then
  mapfile -t chosen < <(printf '%s\n' "${files[@]}" | grep '\.cc$')
elif [ -n "$base" ]; then
  mapfile -t chosen < <({ git diff --name-only --diff-filter=d "$base" -- "${library[@]}"
                          git ls-files -o --exclude-standard -- "${library[@]}"; } | sort -u)
else
  mapfile -t chosen < <(git ls-files -co --exclude-standard -- "${library[@]}" | sort -u)
fi
# Only what this build compiles: kernels of other processors have no compile command.
mapfile -t tidy < <(for file in "${chosen[@]}"; do
  if grep -q "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
done)
if [ ${#tidy[@]} -gt 0 ]; then
  printf '%s\n' "${tidy[@]}" | xargs -P "$jobs" -n 1 clang-tidy -p "$build" --quiet 2> >(grep -v 'warnings generated' >&2) || failed=1
fi
echo "lint: ${#files[@]} files formatted, ${#tidy[@]} through clang-tidy"
exit $failed
