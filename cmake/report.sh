# For gpu_check.sh and nccl_check.sh: a report of checks, one line each. They have set `build` and `report`.
set -uo pipefail
failed=0
logs=$build/$(basename "$0" .sh)
mkdir -p "$logs"

if ! nvidia-smi -L >"$logs/gpus" 2>/dev/null || ! [ -s "$logs/gpus" ]; then
  echo "$(basename "$0"): there is no GPU here (nvidia-smi finds none)" >&2
  exit 1
fi
gpus=$(wc -l <"$logs/gpus")

say() { echo "$*" | tee -a "$report"; }
# check NAME SECONDS COMMAND...: one line of the report; the output stays in the log.
check() {
  local name=$1 limit=$2 log status begin=$SECONDS
  log="$logs/${name//[^a-zA-Z0-9]/_}.log"
  shift 2
  timeout "$limit" "$@" >"$log" 2>&1
  status=$?
  local skipped=""
  if [ $status -eq 4 ]; then  # the test programs' status for "passed, but for tests that were skipped"
    status=0
    skipped="$(grep -c SKIPPED "$log") skipped, "
  fi
  grep -q "No tests ran" "$log" && status=90
  if [ $status -eq 0 ]; then
    say "| $name | passed | $((SECONDS - begin)) s | $skipped$(grep -hoE '[0-9]+ (test cases|assertions)|All tests passed.*|ERROR SUMMARY: [0-9]+ errors|[0-9]+ hazards' "$log" | tail -1) |"
  else
    failed=1
    say "| $name | FAILED ($status) | $((SECONDS - begin)) s | $log |"
    tail -25 "$log" >&2
  fi
}

# times TITLE FILE SECONDS COMMAND...: what fccl-perf prints, in the report.
times() {
  local title=$1 log=$logs/$2.log limit=$3
  shift 3
  if ! timeout "$limit" "$@" >"$log" 2>&1; then
    failed=1
    say "fccl-perf, $title: FAILED"
    tail -5 "$log" >&2
  fi
  say "### $title"
  say '```'
  grep -vE '^# (Intel|AMD|fccl-perf|Avg)' "$log" >>"$report"
  say '```'
}

begin_report() {  # TITLE
  : >"$report"
  say "# $1"
  say ""
  say "$(date -u +%Y-%m-%d), $gpus x $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), commit $(git describe --always --dirty 2>/dev/null || echo unknown)"
  say ""
  say "| what | result | time | |"
  say "| --- | --- | --- | --- |"
}
end_report() {
  say ""
  [ $failed -eq 0 ] && say "All of it passed." || say "NOT all of it passed."
  exit $failed
}
