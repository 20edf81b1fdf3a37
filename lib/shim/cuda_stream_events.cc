#include <cuda_runtime_api.h>

#include "base/log.h"
#include "lib/shim/stream_events.h"
#include "transport/cuda_driver.h"

namespace fccl::shim {
namespace {

cudaStream_t toCuda(void* stream) { return static_cast<cudaStream_t>(stream); }

bool succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  FCCL_WARN("NCCL shim: calls on different streams are not ordered: {}", cudaGetErrorString(error));
  return false;
}

}  // namespace

StreamEvents::~StreamEvents() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

bool StreamEvents::isDefault(const void* stream) { return stream == nullptr || stream == cudaStreamLegacy; }

uint64_t StreamEvents::idOf(void* stream) const {
  constexpr uint64_t kDefault = ~uint64_t{0};  // which cannot be asked while another one is captured
  if (isDefault(stream)) return kDefault;
  const OutsideCapture outside;
  const CurrentDevice current(device_);
  unsigned long long id = 0;
  if (cudaStreamGetId(toCuda(stream), &id) != cudaSuccess) (void)cudaGetLastError();
  return id;
}

// The default stream cannot be asked while another one is captured; that counts as captured.
bool StreamEvents::isCaptured(void* stream) const {
  const CurrentDevice current(device_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool asked = cudaStreamIsCapturing(toCuda(stream), &status) == cudaSuccess;
  if (!asked) (void)cudaGetLastError();
  return !asked || status != cudaStreamCaptureStatusNone;
}

bool StreamEvents::mark(void* stream) {
  const CurrentDevice current(device_);
  auto* event = static_cast<cudaEvent_t>(event_);
  if (event == nullptr && !succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return false;
  event_ = event;
  return succeeded(cudaEventRecord(event, toCuda(stream)));
}

void StreamEvents::follow(void* stream) {
  const CurrentDevice current(device_);
  (void)succeeded(cudaStreamWaitEvent(toCuda(stream), static_cast<cudaEvent_t>(event_), 0));
}

}  // namespace fccl::shim
