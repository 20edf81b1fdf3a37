// NCCL, as a peer to compare with: found at run time, and only what fccl-perf calls of it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "tests/perf/ranks.h"

namespace fccl::perf {

class Nccl {
 public:
  // Collective. NULL, with the reason in `why`, where there is no NCCL, or it refuses these ranks (as it does where two
  // share a GPU).
  static std::unique_ptr<Nccl> connect(Ranks& ranks, std::string* why);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  std::string version() const;
  void allReduce(const void* in, void* out, size_t count, fcclDataType_t dtype, cudaStream_t stream) const;

  // Memory for symmetric windows, registered as such; collective. NULL where this NCCL has none (before 2.27).
  class Window {
   public:
    Window(const Nccl& nccl, size_t bytes);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    void* get() const { return data_; }

   private:
    const Nccl& nccl_;
    void* data_ = nullptr;
    void* window_ = nullptr;
  };
  bool hasWindows() const;

 private:
  struct Functions;
  Nccl() = default;
  std::unique_ptr<Functions> functions_;
  void* comm_ = nullptr;
};

}  // namespace fccl::perf
