#include "transport/nccl_communicator.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/log.h"

namespace fccl {
namespace {

using namespace std::chrono_literals;

// How long abort() lets other threads leave NCCL by themselves. One that waits for a peer there, as the first call of a
// communicator may, is let go by the abort only.
constexpr auto kLeaveTime = 100ms;

constexpr int kInt8 = 0;  // ncclInt8

}  // namespace

// A thread that is about to use comm_, and that abort() waits for. Sequentially consistent on both sides: either this
// thread sees `aborted_`, or abort() sees it counted.
class NcclCommunicator::Inside {
 public:
  explicit Inside(NcclCommunicator& communicator) : communicator_(communicator) {
    communicator_.inside_.fetch_add(1, std::memory_order_seq_cst);
    entered_ = !communicator_.aborted_.load(std::memory_order_seq_cst);
  }
  // Release: what this thread did with comm_ comes before its end in abort().
  ~Inside() { communicator_.inside_.fetch_sub(1, std::memory_order_release); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  bool entered() const { return entered_; }

 private:
  NcclCommunicator& communicator_;
  bool entered_;
};

template <class Call>
Status NcclCommunicator::call(const char* function, Call&& call) {
  const Inside inside(*this);
  if (!inside.entered()) return failure(fcclInvalidUsage, "the NCCL communicator has been aborted.");
  return library_->check(function, call(library_->functions()), comm_);
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::create(
    const Result<std::shared_ptr<const NcclLibrary>>& found, Bootstrap& bootstrap) {
  FCCL_TRY(bootstrap.agree(found.status()));
  const std::shared_ptr<const NcclLibrary>& library = found.value();
  FCCL_TRY_ASSIGN(const std::vector<int> versions, bootstrap.exchange(library->version()));
  const auto other = std::find_if(versions.begin(), versions.end(), [&](int v) { return v != versions.front(); });
  if (other != versions.end()) {
    return failure(fcclInvalidUsage, "rank 0 has NCCL {} and rank {} NCCL {}; all must have the same.",
                   nccl::versionText(versions.front()), other - versions.begin(), nccl::versionText(*other));
  }
  nccl::UniqueId id{};
  Status mine;
  if (bootstrap.rank() == 0) {
    mine = library->check("ncclGetUniqueId", library->functions().getUniqueId(&id), nullptr);
  }
  FCCL_TRY(bootstrap.agree(mine));
  FCCL_TRY_ASSIGN(const std::vector<nccl::UniqueId> ids, bootstrap.exchange(id));

  nccl::Comm comm = nullptr;
  const nccl::Code code = library->functions().commInitRank(&comm, bootstrap.ranks(), ids.front(), bootstrap.rank());
  mine = library->check("ncclCommInitRank", code, nullptr);
  std::unique_ptr<NcclCommunicator> made;
  if (mine.ok()) {
    made.reset(new NcclCommunicator(library, comm, true));
    mine = made->readFacts();
  }
  if (const Status all = bootstrap.agree(mine); !all.ok()) {
    // Its peers are not there: destroying it in good order might wait for them.
    if (made != nullptr) made->abort();
    return all;
  }
  return made;
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::adopt(std::shared_ptr<const NcclLibrary> library,
                                                                  nccl::Comm comm) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(std::move(library), comm, false));
  FCCL_TRY(made->asyncError());
  FCCL_TRY(made->readFacts());
  return made;
}

Status NcclCommunicator::readFacts() {
  FCCL_TRY(call("ncclCommCount", [&](auto& f) { return f.commCount(comm_, &ranks_); }));
  FCCL_TRY(call("ncclCommUserRank", [&](auto& f) { return f.commUserRank(comm_, &rank_); }));
  return call("ncclCommCuDevice", [&](auto& f) { return f.commCuDevice(comm_, &device_); });
}

NcclCommunicator::~NcclCommunicator() {
  // Relaxed: nobody else has it any more.
  if (!own_ || aborted_.load(std::memory_order_relaxed)) return;
  const Status gone = call("ncclCommDestroy", [&](auto& f) { return f.commDestroy(comm_); });
  if (!gone.ok()) FCCL_WARN("{}", gone.message());
}

Status NcclCommunicator::allReduce(const void* in, void* out, size_t count, fcclDataType_t dtype, fcclRedOp_t op,
                                   fcclStream_t stream) {
  return call("ncclAllReduce", [&](auto& f) { return f.allReduce(in, out, count, dtype, op, comm_, stream); });
}

Status NcclCommunicator::allGather(const void* mine, void* all, size_t bytes, fcclStream_t stream) {
  return call("ncclAllGather", [&](auto& f) { return f.allGather(mine, all, bytes, kInt8, comm_, stream); });
}

Status NcclCommunicator::asyncError() {
  nccl::Code code = 0;
  FCCL_TRY(call("ncclCommGetAsyncError", [&](auto& f) { return f.commGetAsyncError(comm_, &code); }));
  if (code == fcclInProgress) {
    return failure(fcclInvalidUsage,
                   "the NCCL communicator is not ready: a call of it is still in progress. Wait until "
                   "ncclCommGetAsyncError gives ncclSuccess.");
  }
  return library_->check("a call that ncclCommGetAsyncError tells of", code, comm_);
}

void NcclCommunicator::abort() {
  if (aborted_.exchange(true, std::memory_order_seq_cst)) return;
  const auto end = std::chrono::steady_clock::now() + kLeaveTime;
  // Sequentially consistent: see Inside.
  while (inside_.load(std::memory_order_seq_cst) != 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(100us);
  }
  if (!own_) return;
  const Status gone = library_->check("ncclCommAbort", library_->functions().commAbort(comm_), nullptr);
  if (!gone.ok()) FCCL_WARN("{}", gone.message());
}

Result<std::unique_ptr<NcclWindow>> NcclWindow::create(NcclCommunicator& communicator, Bootstrap& bootstrap, void* data,
                                                       size_t bytes) {
  constexpr uintptr_t kPage = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  // The same version everywhere, so all ranks go the same way.
  FCCL_TRY(communicator.library().need(NcclFeature::kSymmetricWindows, "a symmetric window"));
  // Before anybody is inside NCCL's call, which all ranks must make.
  FCCL_TRY(bootstrap.agree(reinterpret_cast<uintptr_t>(data) % kPage == 0
                               ? Status()
                               : failure(fcclInvalidArgument,
                                         "{} is not at the beginning of a page, as windows of NCCL are.",
                                         static_cast<const void*>(data))));
  std::unique_ptr<NcclWindow> window(new NcclWindow(communicator, data, bytes));
  FCCL_TRY(bootstrap.agree(window->enroll()));
  return window;
}

Status NcclWindow::enroll() {
  FCCL_TRY(communicator_.call("ncclCommWindowRegister", [&](auto& f) {
    return f.commWindowRegister(communicator_.comm_, data_, bytes_, &window_, nccl::kSymmetricWindow);
  }));
  if (window_ != nullptr) return {};
  return failure(fcclSystemError,
                 "NCCL makes no symmetric windows here: it needs GPUs that reach each other's memory and the driver's "
                 "virtual memory management (NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE).");
}

NcclWindow::~NcclWindow() {
  if (window_ == nullptr) return;
  (void)communicator_.call("ncclCommWindowDeregister",
                           [&](auto& f) { return f.commWindowDeregister(communicator_.comm_, window_); });
}

bool NcclWindow::holds(const void* start, size_t bytes) const {
  const auto* from = static_cast<const char*>(start);
  const auto* begin = static_cast<const char*>(data_);
  // As integers: the two may be of different objects.
  const auto offset = reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(begin);
  return offset <= bytes_ && bytes <= bytes_ - offset;
}

Result<std::unique_ptr<NcclBuffer>> NcclBuffer::create(NcclCommunicator& communicator, Bootstrap& bootstrap,
                                                       size_t bytes) {
  const NcclLibrary& library = communicator.library();
  std::unique_ptr<NcclBuffer> buffer(new NcclBuffer(communicator, bytes));
  FCCL_TRY(bootstrap.agree(
      library.check("ncclMemAlloc", library.functions().memAlloc(&buffer->data_, bytes), communicator.comm_)));
  auto window = NcclWindow::create(communicator, bootstrap, buffer->data_, bytes);
  buffer->reason_ = window.status().message();
  if (window.ok()) buffer->window_ = std::move(window.value());
  return buffer;
}

NcclBuffer::~NcclBuffer() {
  window_.reset();
  if (data_ != nullptr) (void)communicator_.library().functions().memFree(data_);
}

}  // namespace fccl
