// Symmetric memory: one allocation of the same size per rank, mapped into every rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/environment.h"
#include "base/status.h"
#include "transport/bootstrap.h"

namespace fccl {

class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  // Start of rank r's allocation, as mapped here.
  virtual char* peer(int r) const = 0;
  virtual size_t bytes() const = 0;
  // False once the process of rank r has ended, or has given this memory back. What it wrote before is there, so look
  // again at what is waited for before calling it dead. Asks the kernel; for slow paths.
  virtual bool alive(int r) const = 0;
  // For logs: "memfd", "posix", "threads", with page size and NUMA node; "vmm", "ipc" with the GPU.
  virtual const char* kind() const = 0;
};

struct HostMemoryOptions {
  fcclSharedMemory_t provider = fcclSharedMemoryAuto;
  std::chrono::milliseconds timeout{120'000};
  bool numaLocal = true;  // place each rank's part on the NUMA node of the thread that calls
};

// Collective. All ranks are on this machine. The memory is zeroed, and every page is there: a full or too small
// /dev/shm, or too little memory, is an error here (with the bytes needed and the option that helps), never a SIGBUS
// later. Nothing stays behind in the file system, whenever a rank is killed.
Result<std::unique_ptr<SymmetricMemory>> createHostMemory(Bootstrap& bootstrap, size_t bytesPerRank,
                                                          const HostMemoryOptions& options);

// A block that fcclMemAlloc hands out. Kept in a process-wide table (a cache that says so), since registration has to
// find the descriptor by address.
Result<void*> allocateWindowMemory(size_t bytes);
Status freeWindowMemory(void* ptr);  // fcclInvalidArgument for a pointer that allocateWindowMemory did not give

// Collective: maps [buffer, buffer + bytes) of every rank into every rank. peer(r) is r's buffer.
Result<std::unique_ptr<SymmetricMemory>> mapHostWindow(Bootstrap& bootstrap, void* buffer, size_t bytes,
                                                       const HostMemoryOptions& options);

// ---- Memory of GPUs. peer(r) is an address for kernels of this rank's GPU.

struct CudaMemoryOptions {
  int device = 0;  // this rank's GPU
  CudaMemoryWay way = CudaMemoryWay::kAuto;
  std::chrono::milliseconds timeout{120'000};
  // Host memory of the same ranks, which knows who lives; outlives what is made with these options.
  const SymmetricMemory* ranks = nullptr;
  // Called with this rank's fresh memory, its GPU being current, before any peer has the memory.
  std::function<Status(char* data)> prepare;
};

// Collective. Ways in turn, all ranks taking the same: allocations of the driver's virtual memory management, between
// processes passed on as file descriptors; then cudaMalloc with peer access, between processes through cudaIpc handles.
// Ranks may see different GPUs (CUDA_VISIBLE_DEVICES): GPUs are told apart by UUID. fcclSystemError names two ranks
// whose GPUs cannot reach each other's memory. Contents undefined but for what `prepare` does.
Result<std::unique_ptr<SymmetricMemory>> createCudaMemory(Bootstrap& bootstrap, size_t bytesPerRank,
                                                          const CudaMemoryOptions& options);

// A block of the current GPU's memory that fcclMemAlloc hands out, zeroed. In a table like that of host blocks.
Result<void*> allocateCudaWindowMemory(size_t bytes);
// False where `ptr` is no start of such a block.
bool freeCudaWindowMemory(void* ptr);

// Collective: as mapHostWindow, for blocks of allocateCudaWindowMemory on each rank's GPU.
Result<std::unique_ptr<SymmetricMemory>> mapCudaWindow(Bootstrap& bootstrap, void* buffer, size_t bytes,
                                                       const CudaMemoryOptions& options);

}  // namespace fccl
