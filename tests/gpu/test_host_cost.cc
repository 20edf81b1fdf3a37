// Hidden, since it asserts no time: what a call costs the thread that makes it, beyond a launch. Run it by its name.
#include <fmt/format.h>

#include <chrono>
#include <numeric>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/gpu/device_ranks.h"

using namespace fccl::test;

namespace {

// Microseconds per call, the least of several runs that fit the launch queue.
template <class Call>
double costOf(cudaStream_t stream, Call&& call) {
  double least = 1e9;
  for (int run = 0; run < 40; ++run) {
    constexpr int kCalls = 100;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / kCalls);
    cudaOk(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return least;
}

}  // namespace

TEST_CASE("CUDA host cost of a call", "[.timing]") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(1);
  RankDevice& device = cuda.device(0);
  const FusedCase asked;
  FusedProblem problem(asked, 1);
  FusedBuffers own(problem, 0, asked.pattern);
  const DeviceArgs call(device, asked, own);
  char* const words = static_cast<char*>(device.take(4096));
  const double launch = costOf(device.stream(), [&] { fccl::cuda::arm(words, 4096, device.stream()); });
  const double fused =
      costOf(device.stream(), [&] { fcclAllReduceFused(&call.args(), cuda.group().comm(0), device.stream()); });
  const double plain = costOf(device.stream(), [&] {
    fcclAllReduce(words, words, 500, fcclFloat32, fcclSum, cuda.group().comm(0), device.stream());
  });
  fmt::print("a launch {:.2f} us, fcclAllReduceFused {:.2f} us, fcclAllReduce {:.2f} us\n", launch, fused, plain);
}
