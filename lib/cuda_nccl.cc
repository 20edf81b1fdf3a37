#include "lib/cuda_nccl.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "transport/cuda_driver.h"

namespace fccl {

Result<std::unique_ptr<CudaNccl>> CudaNccl::create(std::unique_ptr<NcclCommunicator> communicator, Bootstrap& bootstrap,
                                                   size_t stagingBytes, cuda::HostWords* words) {
  std::unique_ptr<CudaNccl> made(new CudaNccl());
  made->communicator_ = std::move(communicator);
  FCCL_TRY_ASSIGN(made->staging_, NcclBuffer::create(*made->communicator_, bootstrap, stagingBytes));
  const auto takeState = [&]() -> Status {
    FCCL_CUDA(cudaMalloc(reinterpret_cast<void**>(&made->state_), sizeof(cuda::DeviceState)));
    FCCL_TRY_ASSIGN(const PrivateStream stream, PrivateStream::make());
    FCCL_CUDA(cudaMemsetAsync(made->state_, 0, sizeof(cuda::DeviceState), stream.get()));
    FCCL_CUDA(cudaStreamSynchronize(stream.get()));
    return {};
  };
  FCCL_TRY(bootstrap.agree(takeState()));
  made->epilogue_ = cuda::epilogueWorld(made->state_, words);
  return made;
}

CudaNccl::~CudaNccl() {
  if (state_ != nullptr) cudaFree(state_);
}

std::string CudaNccl::describe() const {
  return fmt::format("{}{}", communicator_->library().describe(),
                     windowReason().empty() ? " with a symmetric window" : "");
}

Status CudaNccl::prepare(const cuda::DeviceFacts& facts, const CheckedCall& call, Plan* plan) const {
  if (!call.norm()) return {};
  const RowArgs& rows = call.call.rows;
  const char* reason = nullptr;
  const cuda::Shape shape = cuda::shapeOf(cuda::Protocol::kOneshot, call.call.dtype, rows);
  FCCL_CUDA(cuda::planEpilogue(facts, epilogue_, shape, {}, &plan->launch, &reason));
  const size_t rowBytes = static_cast<size_t>(rows.cols) * host::dtypeBytes(call.call.dtype);
  if (rowBytes > staging_->bytes()) reason = "one row exceeds the staging buffer (FCCL_CUDA_WORKSPACE_BYTES)";
  if (plan->launch.kernel != nullptr && reason == nullptr) return {};
  return failure(fcclInvalidArgument, "a call of {} x {} {} cannot be carried out on CUDA: {}.", rows.rows, rows.cols,
                 host::dtypeName(call.call.dtype), reason);
}

void CudaNccl::addWindow(Bootstrap& bootstrap, void* data, size_t bytes) {
  if (!windowReason().empty()) return;
  auto window = NcclWindow::create(*communicator_, bootstrap, data, bytes);
  if (!window.ok()) {
    FCCL_INFO("a window that is none of NCCL's too: {}", window.status().message());
    return;
  }
  windows_.push_back(std::move(window.value()));
}

void CudaNccl::removeWindow(const void* data) {
  // One, for a buffer may be registered twice.
  const auto found = std::ranges::find_if(windows_, [&](const auto& window) { return window->data() == data; });
  if (found != windows_.end()) windows_.erase(found);
}

bool CudaNccl::inWindow(const void* data, size_t bytes) const {
  return std::ranges::any_of(windows_, [&](const auto& window) { return window->holds(data, bytes); });
}

Status CudaNccl::run(const CheckedCall& call, const Plan& plan, bool* begun) {
  const RowArgs& rows = call.call.rows;
  const void* const place = rows.reducedOut != nullptr ? rows.reducedOut : rows.normOut;
  if (plan.strategy != fcclStrategyNcclSymmetric) {
    return place == nullptr ? runStaged(call, plan, false, begun) : runPlain(call, plan, begun);
  }
  const size_t bytes = static_cast<size_t>(rows.rows * rows.cols) * host::dtypeBytes(call.call.dtype);
  if (inWindow(rows.input, bytes)) {
    return inWindow(place, bytes) ? runPlain(call, plan, begun) : runStaged(call, plan, false, begun);
  }
  if (plan.ncclStaged || place == nullptr) return runStaged(call, plan, plan.ncclStaged, begun);
  return runPlain(call, plan, begun);
}

Status CudaNccl::runPlain(const CheckedCall& call, const Plan& plan, bool* begun) {
  RowArgs rows = call.call.rows;
  // normOut may be the input, of which nothing is wanted any more once it is reduced.
  void* const sums = rows.reducedOut != nullptr ? rows.reducedOut : rows.normOut;
  const auto count = static_cast<size_t>(rows.rows) * static_cast<size_t>(rows.cols);
  FCCL_TRY(communicator_->allReduce(rows.input, sums, count, call.call.dtype, call.call.op, call.stream));
  if (!call.norm()) return {};
  *begun = true;
  rows.reducedOut = nullptr;  // is there
  FCCL_CUDA(cuda::launchEpilogue(plan.launch, call.call.dtype, epilogue_, rows, 0, rows.rows, sums, call.stream));
  return {};
}

// A part is rows, without norm elements: then a call is one row.
Status CudaNccl::runStaged(const CheckedCall& call, const Plan& plan, bool copies, bool* begun) {
  const RowArgs& rows = call.call.rows;
  const size_t elementBytes = host::dtypeBytes(call.call.dtype);
  const auto unitElements = static_cast<size_t>(call.norm() ? rows.cols : 1);
  const size_t unitBytes = unitElements * elementBytes;
  const size_t units = static_cast<size_t>(rows.rows) * static_cast<size_t>(call.norm() ? 1 : rows.cols);
  const size_t most = staging_->bytes() / unitBytes;
  char* const staging = staging_->data();
  for (size_t first = 0; first < units; first += most) {
    const size_t count = std::min(most, units - first);
    const char* from = static_cast<const char*>(rows.input) + first * unitBytes;
    if (copies) {
      FCCL_CUDA(cudaMemcpyAsync(staging, from, count * unitBytes, cudaMemcpyDefault, call.stream));
      from = staging;
    }
    *begun = *begun || copies;
    FCCL_TRY(communicator_->allReduce(from, staging, count * unitElements, call.call.dtype, call.call.op, call.stream));
    *begun = true;
    if (call.norm()) {
      FCCL_CUDA(cuda::launchEpilogue(plan.launch, call.call.dtype, epilogue_, rows, static_cast<int64_t>(first),
                                     static_cast<int64_t>(count), staging, call.stream));
    } else {
      FCCL_CUDA(cudaMemcpyAsync(static_cast<char*>(rows.reducedOut) + first * unitBytes, staging, count * unitBytes,
                                cudaMemcpyDefault, call.stream));
    }
  }
  return {};
}

}  // namespace fccl
