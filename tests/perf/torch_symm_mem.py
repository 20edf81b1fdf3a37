"""FCCL beside PyTorch's symmetric-memory all-reduce, the peer that fccl-perf cannot call, in one run.

    FCCL_LIBRARY=build/libfccl.so PYTHONPATH=examples/pytorch TORCH_SYMM_MEM_DISABLE_MULTICAST=1 \
        torchrun --nproc-per-node 2 tests/perf/torch_symm_mem.py

bf16, hidden 8192; microseconds of one call in a CUDA graph of 20, the median of 30 replays, of the slowest rank. PyTorch's
input lies in its symmetric memory already (its best case), FCCL's anywhere. The fused columns are the all-reduce, then
add and torch.nn.functional.rms_norm, against one call of FCCL.
"""

import os

import fccl
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from fused_all_reduce import FusedAllReduce, microseconds

HIDDEN = 8192
# Multicast is not wanted: it needs a fabric that not every machine has.
assert os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1", "set TORCH_SYMM_MEM_DISABLE_MULTICAST=1"


def slowest(value):
    time = torch.tensor([value], device="cuda")
    dist.all_reduce(time, op=dist.ReduceOp.MAX)
    return time.item()


def plain(comm, x, out):
    args = fccl.FusedArgs(pattern=fccl.PATTERN_ALL_REDUCE, dtype=fccl.BFLOAT16, tokens=x.shape[0], hidden=x.shape[1],
                          input=x.data_ptr(), reducedOut=out.data_ptr())  # fmt: skip
    return lambda: comm.all_reduce_fused(args, torch.cuda.current_stream().cuda_stream)


def row(fused, tokens):
    group = dist.group.WORLD.group_name
    x = symm_mem.empty(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    symm_mem.rendezvous(x, group)
    x.normal_()
    own = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    residual, weight = torch.randn_like(own), torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    out, norm = torch.empty_like(own), torch.empty_like(own)

    def epilogue(total):
        residual.add_(total)
        torch.nn.functional.rms_norm(residual, (HIDDEN,), weight, 1e-5)

    calls = {
        "FCCL": plain(fused.comm, own, out),
        "one_shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group),
        "two_shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group),
        "NCCL": lambda: dist.all_reduce(own),
        "FCCL fused": lambda: fused(own, residual, weight, 1e-5, norm),
        "one_shot + norm": lambda: epilogue(torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group)),
        "two_shot + norm": lambda: epilogue(torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group)),
    }
    times = {}
    for name, call in calls.items():
        dist.barrier()
        times[name] = slowest(microseconds(call))
        x.normal_()
        own.normal_()
        residual.normal_()
    return times


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    fused = FusedAllReduce()
    for tokens in (1, 8, 64, 256, 1024, 4096):
        times = row(fused, tokens)
        if dist.get_rank() == 0:
            if tokens == 1:
                print(f"PyTorch {torch.__version__}, {dist.get_world_size()} ranks")
                print("tokens " + " ".join(f"{name:>16}" for name in times))
            print(f"{tokens:6} " + " ".join(f"{time:16.2f}" for time in times.values()), flush=True)
    fused.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
