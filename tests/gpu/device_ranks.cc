#include "tests/gpu/device_ranks.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace fccl::test {
namespace {

constexpr size_t kCanaryBytes = 256;
constexpr uint8_t kCanary = 0x5c;

// Before CUDA starts: a queue of its own for each stream. With the usual 8 the streams of 8 ranks on one GPU share
// queues, and what stands behind one rank's waiting kernel may be the kernel that it waits for.
[[maybe_unused]] const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

}  // namespace

int gpuCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

fcclConfig_t cudaConfig() {
  fcclConfig_t config = testConfig();
  config.deviceType = fcclDeviceCuda;
  config.allowSharedDevice = 1;
  config.timeoutMs = 8000;
  return config;
}

void cudaOk(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(code)));
}

RankDevice::RankDevice(size_t bytes) : bytes_(bytes) {
  cudaOk(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes_), "cudaMalloc");
  cudaOk(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  // What CUDA loads at its first use is there before any rank's kernel waits for another's.
  char zeros[300] = {};
  for (const size_t few : {size_t{1}, size_t{7}, size_t{300}}) {
    void* const piece = take(few);
    upload(piece, zeros, few);
    download(zeros, piece, few);
  }
  reset();
}

RankDevice::~RankDevice() {
  cudaStreamDestroy(stream_);
  cudaFree(memory_);
}

void* RankDevice::take(size_t bytes) {
  if (used_ == 0) pieces_.clear();
  const size_t total = (bytes + kCanaryBytes + 255) / 256 * 256;
  if (used_ + total > bytes_) throw std::runtime_error("the test asks for more GPU memory than it has taken");
  void* const piece = memory_ + used_;
  cudaOk(cudaMemsetAsync(memory_ + used_ + bytes, kCanary, total - bytes, stream_), "cudaMemsetAsync");
  pieces_.push_back({used_, bytes});
  used_ += total;
  return piece;
}

std::string RankDevice::intact() const {
  for (const Piece& piece : pieces_) {
    uint8_t behind[kCanaryBytes];
    download(behind, memory_ + piece.at + piece.bytes, sizeof(behind));
    for (const uint8_t byte : behind) {
      if (byte != kCanary) return fmt::format("GPU memory behind a buffer of {} bytes was written to", piece.bytes);
    }
  }
  return "";
}

void RankDevice::upload(void* to, const void* from, size_t bytes) const {
  cudaOk(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
}

void RankDevice::download(void* to, const void* from, size_t bytes) const {
  cudaOk(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  synchronize();
}

template <class T>
void DeviceArgs::mirror(T** pointer, size_t bytes) {
  if (*pointer == nullptr) return;
  void* const host = const_cast<void*>(static_cast<const void*>(*pointer));
  for (const Copy& copy : copies_) {
    if (copy.host == host) {
      *pointer = static_cast<T*>(copy.device);
      return;
    }
  }
  const Copy copy{host, device_.take(bytes), bytes};
  device_.upload(copy.device, host, bytes);
  copies_.push_back(copy);
  *pointer = static_cast<T*>(copy.device);
}

DeviceArgs::DeviceArgs(RankDevice& device, const FusedCase& asked, FusedBuffers& own)
    : device_(device), args_(own.args) {
  const size_t bytes = asked.count() * dtypeBytes(asked.dtype);
  const bool fp8 = traits(args_.pattern).quant == Quant::kFp8;
  mirror(&args_.input, bytes);
  mirror(&args_.residual, own.residualBytes());
  mirror(&args_.weight, static_cast<size_t>(asked.hidden) * dtypeBytes(asked.weightType()));
  mirror(&args_.reducedOut, bytes);
  mirror(&args_.residualOut, own.residualBytes());
  mirror(&args_.normOut, bytes);
  mirror(&args_.quantOut, fp8 ? asked.count() : asked.count() / 2);
  mirror(&args_.scaleOut, scaleBytes(asked.tokens, asked.hidden, asked.layout));
  mirror(&args_.fp8DequantScale, sizeof(float));
  mirror(&args_.nvfp4GlobalScale, sizeof(float));
}

void DeviceArgs::fetch() {
  for (const Copy& copy : copies_) device_.download(copy.host, copy.device, copy.bytes);
  if (const std::string damage = device_.intact(); !damage.empty()) throw std::runtime_error(damage);
}

CudaRanks::CudaRanks(int ranks, const fcclConfig_t& config, size_t bytesPerRank) : group_(ranks, config) {
  for (int r = 0; r < ranks; ++r) devices_.push_back(std::make_unique<RankDevice>(bytesPerRank));
}

FusedOutputs CudaRanks::run(FusedProblem& problem) {
  return runFused(group_, problem, [&](Rank& rank, FusedBuffers& own) {
    RankDevice& mine = device(rank.rank);
    mine.reset();
    DeviceArgs call(mine, problem.asked(), own);
    const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, mine.stream());
    if (result == fcclSuccess) call.fetch();
    fcclResult_t async = fcclSuccess;
    fcclCommGetAsyncError(rank.comm, &async);
    return result != fcclSuccess ? result : async;
  });
}

FusedOutputs CudaRanks::run(const FusedCase& asked) {
  FusedProblem problem(asked, group_.ranks());
  return run(problem);
}

CudaWindows::CudaWindows(CudaRanks& cuda, size_t bytes, size_t skew)
    : cuda_(cuda), blocks_(static_cast<size_t>(cuda.group().ranks())), at_(blocks_.size()), handles_(blocks_.size()) {
  cuda.group().run("register windows", [&](Rank& rank) {
    const auto r = static_cast<size_t>(rank.rank);
    if (!rank.ok(fcclMemAllocOn(&blocks_[r], bytes + skew * r, fcclDeviceCuda), "fcclMemAllocOn")) return;
    at_[r] = static_cast<char*>(blocks_[r]) + skew * r;
    rank.ok(fcclCommWindowRegister(rank.comm, at_[r], bytes, &handles_[r], 0), "fcclCommWindowRegister");
  });
}

CudaWindows::~CudaWindows() {
  Failures failures;
  runThreads(cuda_.group().ranks(), "give windows back", Seconds(30), [&](int r) {
    const auto at = static_cast<size_t>(r);
    const Rank self{r, cuda_.group().ranks(), cuda_.group().comm(r), &failures};
    cuda_.device(r).synchronize();
    if (!handles_.empty()) self.ok(fcclCommWindowDeregister(self.comm, handles_[at]), "fcclCommWindowDeregister");
    self.ok(fcclMemFree(blocks_[at]), "fcclMemFree");
  });
  if (!failures.none()) FAIL_CHECK(failures.text());
}

std::string allReduceOnDevice(RankDevice& device, fcclComm_t comm, int rank, int ranks, fcclDataType_t dtype,
                              size_t count, uint64_t seed) {
  std::vector<Bytes> data;
  std::vector<const void*> at;
  for (int r = 0; r < ranks; ++r) {
    fillPlain(dtype, data.emplace_back(count * dtypeBytes(dtype)).data(), count, seed, r);
  }
  for (const Bytes& each : data) at.push_back(each.data());
  const Bytes& mine = data[static_cast<size_t>(rank)];
  device.reset();
  void* const input = device.take(mine.size());
  void* const output = device.take(mine.size());
  device.upload(input, mine.data(), mine.size());
  if (fcclAllReduce(input, output, count, dtype, fcclSum, comm, device.stream()) != fcclSuccess) {
    return fcclGetLastError(comm);
  }
  Bytes result(mine.size());
  device.download(result.data(), output, result.size());
  fcclResult_t async = fcclSuccess;
  fcclCommGetAsyncError(comm, &async);
  if (async != fcclSuccess) return fcclGetLastError(comm);
  const Bytes expected = referenceAllReduce(dtype, fcclSum, at, count);
  const std::string wrong = compareAllReduce(dtype, fcclSum, expected.data(), result.data(), count);
  if (!wrong.empty()) return fmt::format("{} x{} of {} ranks: {}", dtypeName(dtype), count, ranks, wrong);
  return device.intact();
}

}  // namespace fccl::test
