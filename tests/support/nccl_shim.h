// libfccl-nccl.so before the stand-in for NCCL: the functions that a program gets which loads it in NCCL's place.
#pragma once

#include <functional>
#include <string>

#include "fccl.h"

namespace fccl::test {

struct NcclUniqueId {
  char bytes[128];
};

struct Shim {
  explicit Shim(const char* file);
  int (*getVersion)(int*);
  int (*getUniqueId)(NcclUniqueId*);
  int (*commInitRank)(void**, int, NcclUniqueId, int);
  int (*commInitRankConfig)(void**, int, NcclUniqueId, int, void*);
  int (*commSplit)(void*, int, int, void**, void*);
  int (*commFinalize)(void*);
  int (*commDestroy)(void*);
  int (*commAbort)(void*);
  int (*commGetAsyncError)(void*, int*);
  int (*commCount)(void*, int*);
  int (*allReduce)(const void*, void*, size_t, int, int, void*, void*);
  int (*broadcast)(const void*, void*, size_t, int, int, void*, void*);
  int (*recv)(void*, size_t, int, int, void*, void*);
  int (*groupStart)();
  int (*groupEnd)();
  const char* (*getErrorString)(int);
  const char* (*getLastError)(void*);

  // Runs `body(rank, comm)` on ranks that NCCL connects through the shim; what it returns other than "" fails the test.
  // A body that ends its communicator sets it to NULL.
  void withComms(int ranks, const std::function<std::string(int rank, void*& comm)>& body) const;
  // All-reduces a few numbers in place; what is wrong with the result, or "".
  std::string sum(int rank, int ranks, void* comm, size_t count = 8) const;
};

// As it is shipped: without a GPU FCCL serves nothing.
const Shim& shimmed();
// With fcclCommInitNccl of tests/fake_nccl/host_comms.cc, which makes HOST communicators: FCCL serves what it would.
const Shim& shimmedOnHost();

}  // namespace fccl::test
