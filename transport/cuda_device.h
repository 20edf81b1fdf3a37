// What is asked of GPUs before anything is done with them. Plain C++: in a build without the CUDA toolkit
// cuda_absent.cc answers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fccl {

// The same in every process, whatever CUDA_VISIBLE_DEVICES says; a MIG instance has its own.
using CudaUuid = std::array<uint8_t, 16>;
// "GPU-8f3e...": as nvidia-smi has it.
std::string describeUuid(const CudaUuid& uuid);

// `device`, or for -1 the calling thread's current one, if FCCL has kernels for it. The failure is the end of a
// sentence: "this process has no NVIDIA driver (libcuda.so.1).".
Result<int> usableCudaDevice(int device);
// How many GPUs this process sees.
Result<int> cudaDeviceCount();
Result<CudaUuid> cudaUuid(int device);
// Its compute capability, 90 for 9.0.
Result<int> cudaGeneration(int device);

}  // namespace fccl
