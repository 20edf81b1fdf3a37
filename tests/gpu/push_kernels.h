// Producers of fccl_device.h's kind, as tests need them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fccl_device.h"

namespace fccl::test {

// How a pushing kernel is launched.
enum class PushLaunch : uint8_t {
  kPlain,
  kProgrammatic,  // begins before the kernel before it has ended
};

// Copies [push.tokens, push.hidden] from `source` to `input`, and pushes it.
cudaError_t pushInput(const void* source, void* input, const fcclDevicePush_t& push, PushLaunch how,
                      cudaStream_t stream);
// The bf16 input of fillInput() (device_checks.h), pushed as well.
cudaError_t fillAndPush(void* input, const uint32_t* call, const fcclDevicePush_t& push, PushLaunch how,
                        cudaStream_t stream);
// Loaded before ranks wait for each other.
cudaError_t loadPushKernels();

}  // namespace fccl::test
