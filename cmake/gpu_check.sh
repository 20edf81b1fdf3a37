#!/usr/bin/env bash
# make gpu-check: every GPU test on the GPUs of this machine, the long ones too, then a few under compute-sanitizer, then
# times. Writes a report and ends with status 0 only if all of it was run and was right.
#   gpu_check.sh BUILD_FOLDER REPORT
build=$1
report=$2
. "$(dirname "$0")/report.sh"

begin_report gpu-check
tests=$build/fccl-gpu-tests
# Those that need one GPU.
long_checks() {
  check "100,000 mixed calls" 300 "$tests" "CUDA soak: a hundred thousand calls*"
  check "10,000 graph replays" 300 "$tests" "CUDA soak: ten thousand replays*"
  check "10,000 calls between programmatic launches" 300 "$tests" "CUDA soak: ten thousand calls between*"
  check "5,000 large TWOSHOT calls on 8 ranks" 300 "$tests" "CUDA soak: five thousand*"
  check "1,000 changes of type" 300 "$tests" "fused: a thousand changes of type*"
  for ranks in 2 3 4 8; do
    check "grid of patterns, types, strategies and shapes, $ranks ranks" 300 "$tests" "CUDA grid: $ranks ranks"
  done
  check "grid, 2 to 8 processes" 300 "$tests" "CUDA grid: 2 to 8 processes"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
      check "compute-sanitizer $tool" 300 compute-sanitizer --error-exitcode 9 --tool "$tool" "$tests" \
        "CUDA kernels: NaN*"
    done
  else
    say "| compute-sanitizer | SKIPPED: not installed | | |"
  fi
}
if [ "$gpus" -ge 2 ]; then  # on the last one, beside those that use all
  (
    report=$logs/long
    : >"$report"
    export CUDA_VISIBLE_DEVICES=$((gpus - 1))
    long_checks
    exit $failed
  ) &
  check "all GPU tests" 600 "$tests"
  wait $! || failed=1
  cat "$logs/long" >>"$report"
else
  check "all GPU tests" 600 "$tests"
  long_checks
fi
say ""
say "Times (fccl-perf, a graph of 20 calls, microseconds; every result compared with the float64 reference):"
say ""
for ranks in 2 4 8; do
  for pattern in all_reduce residual_rms_norm residual_rms_norm_quant_fp8 residual_rms_norm_quant_nvfp4; do
    peers=none
    [ "$ranks" -le "$gpus" ] && peers=nccl
    times "$ranks ranks on $((ranks < gpus ? ranks : gpus)) GPU(s), $pattern" "perf_${ranks}_$pattern" 200 \
      "$build/fccl-perf" --device cuda --launch threads --ranks $ranks --rounds 31 --check -d bf16 -p $pattern \
      --tokens 1,8,64,128,256,1024 --hidden 8192 --compare $peers
    case $pattern in all_reduce | *fp8) continue ;; esac
    times "$ranks ranks on $((ranks < gpus ? ranks : gpus)) GPU(s), $pattern, sharded residual" "perf_${ranks}_${pattern}_sharded" 200 \
      "$build/fccl-perf" --device cuda --launch threads --ranks $ranks --rounds 31 --check -d bf16 -p $pattern \
      --tokens 64,128,256,1024 --hidden 8192 --sharded-residual
  done
done
end_report
