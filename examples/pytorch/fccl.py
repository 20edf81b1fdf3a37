"""libfccl.so through ctypes: the part of fccl.h that fused_all_reduce.py needs, with no build step and no torch.

FCCL_LIBRARY names the library; else libfccl.so as the loader finds it. Run as a program, it checks that the structures
here are those of the library, on a HOST communicator of one rank.
"""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p

SUCCESS = 0
FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 9
PATTERN_ALL_REDUCE = 0
PATTERN_RESIDUAL_RMS_NORM = 2
STRATEGY_AUTO = 3
DEVICE_HOST, DEVICE_CUDA = 1, 2
UNDEFINED = -1


class UniqueId(Structure):
    _fields_ = [("internal", c_char * 128)]


class Config(Structure):
    """fcclConfig_t, version 3."""

    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint)] + [
        (name, c_int)
        for name in (
            "deviceType strategy checkCalls timeoutMs initTimeoutMs sharedMemory bindCores slotBytes".split()
        )
    ] + [("netName", c_void_p)] + [
        (name, c_int) for name in "cudaDevice allowSharedDevice cudaWorkspaceBytes nccl".split()
    ]

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(Config), 0xFCC1C0DE, 3)
        for name, kind in self._fields_[3:]:
            setattr(self, name, fields.pop(name, UNDEFINED if kind is c_int else None))
        assert not fields, f"fcclConfig_t has no {fields}"


class FusedArgs(Structure):
    """fcclFusedArgs_t, version 2; what is not given is as FCCL_FUSED_ARGS_INITIALIZER has it."""

    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("pattern", c_int), ("dtype", c_int),
        ("tokens", c_int64), ("hidden", c_int64), ("input", c_void_p), ("residual", c_void_p), ("weight", c_void_p),
        ("weightDtype", c_int), ("weightBias", c_float), ("eps", c_float), ("reducedOut", c_void_p),
        ("residualOut", c_void_p), ("normOut", c_void_p), ("quantOut", c_void_p), ("scaleOut", c_void_p),
        ("fp8DequantScale", c_void_p), ("nvfp4GlobalScale", c_void_p), ("scaleLayout", c_int), ("strategy", c_int),
        ("inputPushed", c_int),
    ]  # fmt: skip

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(FusedArgs), 0xFCC1F05E, 2, 0, BFLOAT16, weightDtype=-1, eps=1e-5,
                         strategy=STRATEGY_AUTO)  # fmt: skip
        for name, value in fields.items():
            setattr(self, name, value)


def load():
    library = ctypes.CDLL(os.environ.get("FCCL_LIBRARY", "libfccl.so"))
    library.fcclGetLastError.restype = ctypes.c_char_p
    library.fcclGetLastError.argtypes = [c_void_p]
    library.fcclGetUniqueId.argtypes = [POINTER(UniqueId)]
    library.fcclCommInit.argtypes = [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)]
    library.fcclAllReduceFused.argtypes = [POINTER(FusedArgs), c_void_p, c_void_p]
    library.fcclCommGetAsyncError.argtypes = [c_void_p, POINTER(c_int)]
    library.fcclCommDestroy.argtypes = [c_void_p]
    return library


class Communicator:
    """One rank of an FCCL communicator. `share(id_bytes_or_None)` hands rank 0's id to all ranks and returns it."""

    def __init__(self, rank, ranks, share, **config):
        self.library = load()
        self.comm = c_void_p()
        mine = UniqueId()
        if rank == 0:
            self.check(self.library.fcclGetUniqueId(byref(mine)))
        unique = UniqueId.from_buffer_copy(share(bytes(mine) if rank == 0 else None))
        self.check(self.library.fcclCommInit(byref(self.comm), ranks, unique, rank, byref(Config(**config))))

    def check(self, result):
        if result != SUCCESS:
            raise RuntimeError(self.library.fcclGetLastError(None).decode())

    def all_reduce_fused(self, args, stream=None):
        self.check(self.library.fcclAllReduceFused(byref(args), self.comm, stream))

    def check_enqueued(self):
        """Raises what has become of enqueued calls; after the stream was synchronised."""
        error = c_int()
        self.check(self.library.fcclCommGetAsyncError(self.comm, byref(error)))
        if error.value != SUCCESS:
            raise RuntimeError(self.library.fcclGetLastError(self.comm).decode())

    def destroy(self):
        self.check(self.library.fcclCommDestroy(self.comm))
        self.comm = c_void_p()


def main():
    comm = Communicator(0, 1, lambda mine: mine, deviceType=DEVICE_HOST)
    row = c_float * 4
    x, residual, weight, norm = row(6, 6, 6, 6), row(2, 4, 6, 8), row(1, 1, 1, 1), row()
    args = FusedArgs(pattern=PATTERN_RESIDUAL_RMS_NORM, dtype=FLOAT32, tokens=1, hidden=4,
                     input=ctypes.addressof(x), residual=ctypes.addressof(residual), weight=ctypes.addressof(weight),
                     residualOut=ctypes.addressof(residual), normOut=ctypes.addressof(norm))  # fmt: skip
    comm.all_reduce_fused(args)
    comm.check_enqueued()
    comm.destroy()
    print("residual", *(f"{v:g}" for v in residual), "norm", *(f"{v:.4f}" for v in norm))


if __name__ == "__main__":
    main()
