// What FCCL has no part in: NCCL's functions from 2.19 to 2.28, its device API left out, passed on as they come. A
// program that is linked with NCCL would find them there by itself; one that loads the shim by name, in NCCL's place,
// finds them here.
#include <cstddef>
#include <cstdint>

#include "lib/shim/group.h"
#include "lib/shim/real.h"
#include "transport/nccl_library.h"

using fccl::nccl::UniqueId;
using fccl::shim::callReal;
using fccl::shim::find;
using fccl::shim::findReal;
using fccl::shim::inOrder;

#define SHIM_API extern "C" __attribute__((visibility("default")))

// NCCL's other structs and its handles are pointers here, its enumerations and results int, streams pointers.

#define SHIM_FORWARD(name, parameters, ...) \
  SHIM_API int name parameters { return callReal(#name, __VA_ARGS__); }
// The same of what is enqueued on a stream.
#define SHIM_ENQUEUE(name, parameters, ...)                                           \
  SHIM_API int name parameters {                                                      \
    return inOrder(find(comm), stream, [&] { return callReal(#name, __VA_ARGS__); }); \
  }

SHIM_FORWARD(ncclMemAlloc, (void** pointer, size_t size), pointer, size)
SHIM_FORWARD(ncclMemFree, (void* pointer), pointer)
SHIM_FORWARD(ncclGetVersion, (int* version), version)
SHIM_FORWARD(ncclGetUniqueId, (UniqueId * id), id)
SHIM_FORWARD(ncclCommInitAll, (void** comms, int devices, const int* list), comms, devices, list)
SHIM_FORWARD(ncclCommCount, (void* comm, int* count), comm, count)
SHIM_FORWARD(ncclCommCuDevice, (void* comm, int* device), comm, device)
SHIM_FORWARD(ncclCommUserRank, (void* comm, int* rank), comm, rank)
SHIM_FORWARD(ncclCommRegister, (void* comm, void* buffer, size_t size, void** handle), comm, buffer, size, handle)
SHIM_FORWARD(ncclCommDeregister, (void* comm, void* handle), comm, handle)
SHIM_FORWARD(ncclCommWindowRegister, (void* comm, void* buffer, size_t size, void** window, int flags), comm, buffer,
             size, window, flags)
SHIM_FORWARD(ncclCommWindowDeregister, (void* comm, void* window), comm, window)
SHIM_FORWARD(ncclRedOpCreatePreMulSum, (int* op, void* scalar, int dtype, int residence, void* comm), op, scalar, dtype,
             residence, comm)
SHIM_FORWARD(ncclRedOpDestroy, (int op, void* comm), op, comm)
SHIM_ENQUEUE(ncclReduce,
             (const void* in, void* out, size_t count, int dtype, int op, int root, void* comm, void* stream), in, out,
             count, dtype, op, root, comm, stream)
SHIM_ENQUEUE(ncclBcast, (void* data, size_t count, int dtype, int root, void* comm, void* stream), data, count, dtype,
             root, comm, stream)
SHIM_ENQUEUE(ncclBroadcast, (const void* in, void* out, size_t count, int dtype, int root, void* comm, void* stream),
             in, out, count, dtype, root, comm, stream)
SHIM_ENQUEUE(ncclReduceScatter, (const void* in, void* out, size_t count, int dtype, int op, void* comm, void* stream),
             in, out, count, dtype, op, comm, stream)
SHIM_ENQUEUE(ncclAllGather, (const void* in, void* out, size_t count, int dtype, void* comm, void* stream), in, out,
             count, dtype, comm, stream)
SHIM_ENQUEUE(ncclAlltoAll, (const void* in, void* out, size_t count, int dtype, void* comm, void* stream), in, out,
             count, dtype, comm, stream)
SHIM_ENQUEUE(ncclGather, (const void* in, void* out, size_t count, int dtype, int root, void* comm, void* stream), in,
             out, count, dtype, root, comm, stream)
SHIM_ENQUEUE(ncclScatter, (const void* in, void* out, size_t count, int dtype, int root, void* comm, void* stream), in,
             out, count, dtype, root, comm, stream)
SHIM_ENQUEUE(ncclSend, (const void* data, size_t count, int dtype, int peer, void* comm, void* stream), data, count,
             dtype, peer, comm, stream)
SHIM_ENQUEUE(ncclRecv, (void* data, size_t count, int dtype, int peer, void* comm, void* stream), data, count, dtype,
             peer, comm, stream)

SHIM_API const char* ncclGetErrorString(int code) {
  auto* const function = reinterpret_cast<const char* (*)(int)>(findReal("ncclGetErrorString"));
  return function != nullptr ? function(code) : "there is no NCCL behind FCCL's shim";
}
SHIM_API const char* ncclGetLastError(void* comm) {
  if (const char* const ours = fccl::shim::lastFcclError(); ours != nullptr) return ours;
  auto* const function = reinterpret_cast<const char* (*)(void*)>(findReal("ncclGetLastError"));
  return function != nullptr ? function(comm) : "there is no NCCL behind FCCL's shim";
}
SHIM_API void ncclResetDebugInit() {
  if (auto* const function = reinterpret_cast<void (*)()>(findReal("ncclResetDebugInit"))) function();
}
