#include <cuda_runtime_api.h>

#include "base/log.h"
#include "lib/shim/stream_order.h"

namespace fccl::shim {
namespace {

// The legacy stream cannot be asked while another one is captured; that counts as captured.
bool isCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool asked = cudaStreamIsCapturing(stream, &status) == cudaSuccess;
  if (!asked) (void)cudaGetLastError();
  return !asked || status != cudaStreamCaptureStatusNone;
}

}  // namespace

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

void StreamOrder::follow(void* stream) {
  auto* const before = static_cast<cudaStream_t>(last_);
  auto* const now = static_cast<cudaStream_t>(stream);
  const bool changed = changes(stream);
  has_ = true;
  last_ = stream;
  if (!changed || isCaptured(before) || isCaptured(now)) return;
  auto* event = static_cast<cudaEvent_t>(event_);
  cudaError_t error = cudaSuccess;
  if (event == nullptr) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  event_ = event;
  if (error == cudaSuccess) error = cudaEventRecord(event, before);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(now, event, 0);
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  FCCL_WARN("A call is not ordered behind the one before, which was on another stream: {}", cudaGetErrorString(error));
}

}  // namespace fccl::shim
