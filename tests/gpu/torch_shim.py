"""What PyTorch's NCCL backend computes, with and without libfccl-nccl.so: all_reduce, a DDP step, a CUDA graph.

    torchrun --nproc-per-node 1 tests/gpu/torch_shim.py --save /tmp/plain.pt
    FCCL_NCCL_SHIM=always FCCL_DEBUG=INFO LD_PRELOAD=build/libfccl-nccl.so \
        torchrun --nproc-per-node 1 tests/gpu/torch_shim.py --compare /tmp/plain.pt

With one or two ranks the results must be the same bits; with more the order of NCCL's sums is its own, and the
difference must stay below the rounding of the type. FCCL_DEBUG=INFO says at the end who has served how many calls.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def all_reduces(rank):
    results = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.float64):
        for count in (1, 8192, 65536, 131072, 1 << 20):
            generator = torch.Generator(device="cuda").manual_seed(count + rank)
            x = (torch.randn(count, generator=generator, device="cuda") * 8).to(dtype)
            dist.all_reduce(x)
            results[f"sum of {count} {dtype}"] = x.cpu()
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            results[f"max of {count} {dtype}"] = x.cpu()
    return results


def coalesced(rank):
    tensors = [torch.full((n,), float(rank + n), device="cuda") for n in (3, 1000, 1 << 20)]
    with dist._coalescing_manager(device=torch.device("cuda")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    return {f"coalesced {tensor.numel()}": tensor.cpu() for tensor in tensors}


def ddp_step(rank):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(torch.randn(32, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    return {f"DDP {name}": value.detach().cpu() for name, value in model.named_parameters()}


def graph(rank):
    x = torch.empty(4096, dtype=torch.bfloat16, device="cuda")
    source = torch.arange(4096, device="cuda").to(torch.bfloat16) * (rank + 1)
    x.copy_(source)
    dist.all_reduce(x)  # connects the ranks before anything is captured
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x.copy_(source)
        for _ in range(4):
            dist.all_reduce(x)
    for _ in range(5):
        captured.replay()
    torch.cuda.synchronize()
    return {"graph": x.cpu()}


def subgroup():
    group = dist.new_group(list(range(dist.get_world_size())))
    x = torch.full((1000,), 3.0, device="cuda")
    dist.all_reduce(x, group=group)
    result = {"new_group": x.cpu()}
    dist.destroy_process_group(group)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--compare")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = {**all_reduces(rank), **coalesced(rank), **ddp_step(rank), **graph(rank), **subgroup()}
    dist.destroy_process_group()

    if arguments.save:
        torch.save(results, f"{arguments.save}.{rank}")
    if arguments.compare:
        expected = torch.load(f"{arguments.compare}.{rank}")
        assert expected.keys() == results.keys()
        for name, value in expected.items():
            if ranks <= 2 or not value.is_floating_point():
                assert torch.equal(value, results[name]), f"rank {rank}: {name} differs"
            else:
                torch.testing.assert_close(results[name], value, msg=lambda text: f"rank {rank}: {name}: {text}")
        print(f"rank {rank}: {len(results)} results as plain NCCL gives them")


if __name__ == "__main__":
    main()
