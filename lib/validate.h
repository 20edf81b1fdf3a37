// Every argument of a collective is checked here, before anything moves, and turned into what the kernels take.
#pragma once

#include "base/status.h"
#include "kernels/host/host_kernels.h"

namespace fccl {

enum class EntryPoint : uint8_t { kAllReduce = 1, kAllReduceFused = 2 };

// A call whose arguments are right by themselves. `tokens` and `hidden` are the caller's; call.rows is the kernels'
// view, in which a call without norm is one row.
struct CheckedCall {
  EntryPoint entry = EntryPoint::kAllReduce;
  fcclFusionPattern_t pattern = fcclPatternAllReduce;
  fcclStrategy_t strategy = fcclStrategyAuto;
  int64_t tokens = 0;
  int64_t hidden = 0;
  fcclStream_t stream = nullptr;
  host::Call call;

  bool empty() const { return tokens == 0 || hidden == 0; }
  bool norm() const { return call.rows.weight != nullptr; }
};

// Of the communicator.
struct Caller {
  fcclDeviceType_t device = fcclDeviceHost;
  int rank = 0;
  int ranks = 1;
};

// `device`: of the communicator; HOST has no streams.
Status checkAllReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype, fcclRedOp_t op,
                      fcclStream_t stream, fcclDeviceType_t device, CheckedCall* checked);
Status checkAllReduceFused(const fcclFusedArgs_t* args, fcclStream_t stream, const Caller& caller,
                           CheckedCall* checked);

// What the caller's struct, of whatever version, has, over the initializer's values; a header that is wrong stays so.
// args may be NULL.
fcclFusedArgs_t copyFusedArgs(const fcclFusedArgs_t* args) noexcept;

// Rows of a fused call: their number, length and type. `dtype` may hold any number.
Status checkShape(int64_t tokens, int64_t hidden, const fcclDataType_t& dtype);
// Of rows that a kernel pushes (fccl_device.h).
Status checkPushedRow(int64_t hidden, fcclDataType_t dtype);

// As fcclQuantScaleBytes.
Status quantScaleBytes(int64_t tokens, int64_t hidden, fcclFusionPattern_t pattern, fcclScaleLayout_t layout,
                       size_t* bytes);

// As fcclResidualShard.
Status residualShard(int64_t tokens, int nranks, int rank, int64_t* first, int64_t* count);

// NULL for a number that is no fcclStrategy_t, fcclRedOp_t.
const char* strategyName(int strategy);
const char* opName(int op);

}  // namespace fccl
