"""All-reduce, residual add and RMSNorm of torch tensors in one call of FCCL.

    FCCL_LIBRARY=build/libfccl.so torchrun --nproc-per-node 2 examples/pytorch/fused_all_reduce.py

A process per GPU. Checks fused_all_reduce() against dist.all_reduce and torch.nn.functional.rms_norm, calls it from a
CUDA graph too, and prints the time of both ways, each in a graph of 20 calls.
"""

import argparse
import os

import fccl
import torch
import torch.distributed as dist

DTYPES = {torch.float16: fccl.FLOAT16, torch.bfloat16: fccl.BFLOAT16, torch.float32: fccl.FLOAT32}


def share_over_torch(mine):
    box = [mine]
    dist.broadcast_object_list(box, src=0)
    return box[0]


class FusedAllReduce:
    """comm(x, residual, weight, eps) -> (norm, new residual), x and residual [tokens, hidden] on this rank's GPU.

    Enqueued on torch's current stream, and may be captured into a CUDA graph. residual is overwritten by the new one.
    """

    def __init__(self):
        device = torch.cuda.current_device()
        self.comm = fccl.Communicator(dist.get_rank(), dist.get_world_size(), share_over_torch,
                                      deviceType=fccl.DEVICE_CUDA, cudaDevice=device)  # fmt: skip

    def __call__(self, x, residual, weight, eps, norm=None):
        for name, tensor in (("x", x), ("residual", residual), ("weight", weight)):
            assert tensor.is_cuda and tensor.is_contiguous(), f"{name} must be contiguous and on a GPU"
        assert x.shape == residual.shape and x.dtype == residual.dtype and weight.shape == x.shape[-1:]
        norm = torch.empty_like(x) if norm is None else norm
        tokens, hidden = x.shape
        args = fccl.FusedArgs(
            pattern=fccl.PATTERN_RESIDUAL_RMS_NORM, dtype=DTYPES[x.dtype], tokens=tokens, hidden=hidden,
            input=x.data_ptr(), residual=residual.data_ptr(), weight=weight.data_ptr(),
            weightDtype=DTYPES[weight.dtype], eps=eps, residualOut=residual.data_ptr(), normOut=norm.data_ptr(),
        )  # fmt: skip
        self.comm.all_reduce_fused(args, torch.cuda.current_stream().cuda_stream)
        return norm, residual

    def destroy(self):
        torch.cuda.synchronize()
        self.comm.check_enqueued()
        self.comm.destroy()


def separate(x, residual, weight, eps):
    dist.all_reduce(x)
    residual.add_(x)
    return torch.nn.functional.rms_norm(residual, residual.shape[-1:], weight, eps), residual


def microseconds(call, calls=20, replays=30):
    """Of one call in a CUDA graph, the median of its replays."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    took = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(1000 * begin.elapsed_time(end) / calls)
    return sorted(took)[replays // 2]


def check(fused, tokens, hidden, dtype):
    torch.manual_seed(tokens + dist.get_rank())
    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    torch.manual_seed(tokens)  # the same on every rank
    residual = torch.randn(tokens, hidden, device="cuda").to(dtype)
    weight = torch.rand(hidden, device="cuda").to(dtype) + 0.5

    # The sum in fp64, rounded where FCCL rounds.
    total = x.double()
    dist.all_reduce(total)
    wanted_residual = (total.to(dtype).double() + residual.double()).to(dtype)
    wanted = torch.nn.functional.rms_norm(wanted_residual.double(), (hidden,), weight.double(), 1e-5)

    norm, new_residual = fused(x, residual.clone(), weight, 1e-5)
    torch.testing.assert_close(new_residual, wanted_residual)
    torch.testing.assert_close(norm.double(), wanted, rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-2)

    # The same as a graph, whose replays begin from the same residual.
    static, out = residual.clone(), torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.copy_(residual)
        fused(x, static, weight, 1e-5, out)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, norm) and torch.equal(static, new_residual), "the graph gives other bits"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=8192)
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    fused = FusedAllReduce()
    for dtype in DTYPES:
        for tokens in (1, 7, 64, 256):
            check(fused, tokens, arguments.hidden, dtype)
    if dist.get_rank() == 0:
        print(f"checked against torch on {dist.get_world_size()} ranks")
        print("tokens   fused us   all_reduce + add + rms_norm us")
    for tokens in (1, 8, 64, 256, 1024):
        x = torch.randn(tokens, arguments.hidden, device="cuda").to(torch.bfloat16) / 100
        residual, out = torch.zeros_like(x), torch.empty_like(x)
        weight = torch.ones(arguments.hidden, device="cuda", dtype=torch.bfloat16)
        ours = microseconds(lambda: fused(x, residual, weight, 1e-5, out))
        theirs = microseconds(lambda: separate(x, residual, weight, 1e-5))
        if dist.get_rank() == 0:
            print(f"{tokens:6}   {ours:8.2f}   {theirs:8.2f}")
    fused.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
