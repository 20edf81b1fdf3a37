#!/bin/sh
# The main job, twice: a real model writes text over 4 ranks, then the all-reduces of a large model's decode step. Both
# check what they compute and end with an error where it is wrong.    examples/demo.sh [build folder]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs=${1:-$here/../build}/examples
model=$here/models/kjv-1m

for program in tensor_parallel_llm nemotron_h; do
  if [ ! -x "$programs/$program" ]; then
    echo "$programs/$program is missing: build first (make), with an MPI installed (make deps)" >&2
    exit 1
  fi
done

echo "== 1. A trained model on 4 ranks, tensor-parallel"
"$programs/tensor_parallel_llm" --ranks 4 --fused
echo
"$programs/tensor_parallel_llm" --ranks 4 --unfused
echo
"$programs/tensor_parallel_llm" --ranks 4 --check "$model/golden.json"

echo
echo "== 2. The all-reduces of a Nemotron-H decode step at full size, 4 ranks"
"$programs/nemotron_h" --ranks-per-node 4 --iters 4
