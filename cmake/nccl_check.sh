#!/usr/bin/env bash
# make nccl-check: what FCCL does next to the real NCCL, on the GPUs of this machine (one is enough for all but times): the
# NCCL strategies, the drop-in example, the shim under PyTorch, the PyTorch example, PyTorch's symmetric memory as a peer.
# Writes a report and ends with status 0 only if all of it was run and was right; PyTorch (torchrun) is part of it.
#   nccl_check.sh BUILD_FOLDER REPORT
build=$(realpath "$1")
report=$2
. "$(dirname "$0")/report.sh"
export LD_LIBRARY_PATH=$build:${LD_LIBRARY_PATH:-}
export FCCL_LIBRARY=$build/libfccl.so

ranks=$((gpus > 2 ? 2 : gpus))
torch() { torchrun --nproc-per-node "$ranks" "$@"; }
# The shim, for the ranks only.
shimmed() {
  FCCL_DEBUG=INFO torchrun --nproc-per-node "$ranks" --no-python env "LD_PRELOAD=$build/libfccl-nccl.so" python3 "$@"
}
export -f torch shimmed
export build ranks
begin_report "nccl-check, $ranks rank(s)"
check "NCCL strategies, shim, graphs: GPU tests" 200 "$build/fccl-gpu-tests" "CUDA NCCL*"
check "drop-in example, NCCL" 60 "$build/examples/dropin_before"
check "drop-in example, FCCL" 60 "$build/examples/dropin_after"
if command -v torchrun >/dev/null; then
  check "PyTorch as it is" 120 bash -c 'torch "$@"' - tests/gpu/torch_shim.py --save "$logs/plain.pt"
  check "PyTorch with the shim" 120 bash -c 'shimmed "$@"' - tests/gpu/torch_shim.py --compare "$logs/plain.pt"
  FCCL_NCCL_SHIM=always \
    check "PyTorch with the shim serving all that it can" 120 bash -c 'shimmed "$@"' - tests/gpu/torch_shim.py --compare "$logs/plain.pt"
  check "PyTorch example" 120 bash -c 'torch "$@"' - examples/pytorch/fused_all_reduce.py
  if [ "$ranks" -ge 2 ]; then
    check "PyTorch symmetric memory, times" 200 bash -c 'torch "$@"' - tests/perf/torch_symm_mem.py
  else
    say "| PyTorch symmetric memory, times | SKIPPED: one GPU | | |"
  fi
else
  failed=1
  say "| PyTorch | SKIPPED: no torchrun here | | |"
fi
say ""
say "Times (fccl-perf, a graph of 20 calls, microseconds; every result compared with the float64 reference):"
say ""
for strategy in nccl nccl_symmetric; do
  for pattern in all_reduce residual_rms_norm residual_rms_norm_quant_nvfp4; do
    FCCL_NCCL=1 times "$strategy, $pattern" "perf_${strategy}_$pattern" 100 \
      "$build/fccl-perf" --device cuda --launch threads --ranks "$ranks" --rounds 11 --check -d bf16 -p $pattern \
      --strategy $strategy --tokens 1,64,256,1024 --hidden 8192
  done
done
end_report
