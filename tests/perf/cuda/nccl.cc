#include "tests/perf/cuda/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <vector>

namespace fccl::perf {
namespace {

struct UniqueId {
  char bytes[128];
};
constexpr int kSymmetricWindow = 1;  // NCCL_WIN_COLL_SYMMETRIC

}  // namespace

// NCCL's results, data types and operators have the numbers that fccl.h has.
struct Nccl::Functions {
  int (*getVersion)(int*);
  int (*getUniqueId)(UniqueId*);
  int (*commInitRank)(void**, int, UniqueId, int);
  int (*commDestroy)(void*);
  int (*allReduce)(const void*, void*, size_t, int, int, void*, cudaStream_t);
  const char* (*getErrorString)(int);
  int (*memAlloc)(void**, size_t);
  int (*memFree)(void*);
  int (*windowRegister)(void*, void*, size_t, void**, int);
  int (*windowDeregister)(void*, void*);

  void ok(int result, const char* call) const {
    if (result != 0) throw std::runtime_error(fmt::format("{}: {}", call, getErrorString(result)));
  }
};

std::unique_ptr<Nccl> Nccl::connect(Ranks& ranks, std::string* why) {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = "libnccl.so.2 is not found";
    return nullptr;
  }
  auto functions = std::make_unique<Functions>();
  const auto find = [&](auto* function, const char* name) {
    *reinterpret_cast<void**>(function) = dlsym(library, name);
    return *function != nullptr;
  };
  Functions& f = *functions;
  if (!find(&f.getVersion, "ncclGetVersion") || !find(&f.getUniqueId, "ncclGetUniqueId") ||
      !find(&f.commInitRank, "ncclCommInitRank") || !find(&f.commDestroy, "ncclCommDestroy") ||
      !find(&f.allReduce, "ncclAllReduce") || !find(&f.getErrorString, "ncclGetErrorString")) {
    *why = "libnccl.so.2 lacks a function";
    return nullptr;
  }
  find(&f.memAlloc, "ncclMemAlloc");
  find(&f.memFree, "ncclMemFree");
  find(&f.windowRegister, "ncclCommWindowRegister");
  find(&f.windowDeregister, "ncclCommWindowDeregister");

  // Rank 0's id, byte by byte as the largest of all ranks' numbers.
  UniqueId id{};
  if (ranks.rank() == 0) f.ok(f.getUniqueId(&id), "ncclGetUniqueId");
  std::array<double, sizeof id.bytes> numbers{};
  for (size_t i = 0; i < numbers.size(); i++) numbers[i] = static_cast<unsigned char>(id.bytes[i]);
  ranks.maximum(numbers);
  for (size_t i = 0; i < numbers.size(); i++) id.bytes[i] = static_cast<char>(static_cast<unsigned char>(numbers[i]));

  std::unique_ptr<Nccl> nccl(new Nccl());
  nccl->functions_ = std::move(functions);
  const int result = nccl->functions_->commInitRank(&nccl->comm_, ranks.count(), id, ranks.rank());
  if (ranks.sum(result != 0 ? 1 : 0) != 0) {
    *why = result != 0 ? nccl->functions_->getErrorString(result) : "another rank could not connect";
    return nullptr;
  }
  return nccl;
}

Nccl::~Nccl() {
  if (comm_ != nullptr) functions_->commDestroy(comm_);
}

std::string Nccl::version() const {
  int version = 0;
  functions_->ok(functions_->getVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void Nccl::allReduce(const void* in, void* out, size_t count, fcclDataType_t dtype, cudaStream_t stream) const {
  functions_->ok(functions_->allReduce(in, out, count, dtype, fcclSum, comm_, stream), "ncclAllReduce");
}

bool Nccl::hasWindows() const {
  return functions_->memAlloc != nullptr && functions_->memFree != nullptr && functions_->windowRegister != nullptr &&
         functions_->windowDeregister != nullptr;
}

Nccl::Window::Window(const Nccl& nccl, size_t bytes) : nccl_(nccl) {
  const Functions& f = *nccl.functions_;
  f.ok(f.memAlloc(&data_, bytes), "ncclMemAlloc");
  f.ok(f.windowRegister(nccl.comm_, data_, bytes, &window_, kSymmetricWindow), "ncclCommWindowRegister");
}

Nccl::Window::~Window() {
  const Functions& f = *nccl_.functions_;
  if (window_ != nullptr) f.windowDeregister(nccl_.comm_, window_);
  if (data_ != nullptr) f.memFree(data_);
}

}  // namespace fccl::perf
