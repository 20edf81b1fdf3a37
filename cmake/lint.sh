#!/usr/bin/env bash
# clang-format on all files, clang-tidy on those that differ from the last commit of the main branch ("changed", which is
# all where there is none) or on all. Usage: lint.sh BUILD changed|all JOBS
set -euo pipefail
build=$1 which=$2 jobs=$3

for program in clang-format clang-tidy git; do
  if ! command -v "$program" >/dev/null; then
    echo "make lint needs $program; LINT=1 make deps installs it." >&2
    exit 1
  fi
done

mapfile -t files < <(git ls-files -co --exclude-standard -- '*.c' '*.cc' '*.h' '*.cu' '*.cuh' | sort -u |
  while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done)
failed=0
clang-format --dry-run -Werror "${files[@]}" || failed=1
if grep -nE '.{121,}' "${files[@]}"; then
  echo "These lines are longer than 120 columns." >&2
  failed=1
fi

base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse --verify -q HEAD~1 || true)
if [ "$which" = changed ] && [ -n "$base" ]; then
  mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base" -- '*.cc'; git ls-files -o --exclude-standard -- '*.cc'; } | sort -u)
else
  mapfile -t changed < <(printf '%s\n' "${files[@]}" | grep '\.cc$')
fi
# Only what this build compiles: kernels of other processors have no compile command.
mapfile -t tidy < <(for file in "${changed[@]}"; do
  if grep -q "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
done)
if [ ${#tidy[@]} -gt 0 ]; then
  printf '%s\n' "${tidy[@]}" | xargs -P "$jobs" -n 1 clang-tidy -p "$build" --quiet 2> >(grep -v 'warnings generated' >&2) || failed=1
fi
echo "lint: ${#files[@]} files formatted, ${#tidy[@]} through clang-tidy"
exit $failed
