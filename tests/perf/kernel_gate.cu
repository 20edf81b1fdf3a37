#include "tests/perf/kernel_gate.h"

namespace fccl::perf {
namespace {

// Ends by itself after some seconds, should the host never open it.
__global__ void gateKernel(const volatile int* opened, int number) {
  for (int i = 0; i < 50'000'000 && *opened < number; i++) {
  }
}

}  // namespace

cudaError_t gate(const int* opened, int number, cudaStream_t stream) {
  gateKernel<<<1, 1, 0, stream>>>(opened, number);
  return cudaGetLastError();
}

}  // namespace fccl::perf
