// One rank of an NCCL communicator: made for FCCL, or the caller's own.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transport/bootstrap.h"
#include "transport/nccl_library.h"

namespace fccl {

class NcclCommunicator {
 public:
  // Collective over the ranks of `bootstrap`; this rank's GPU is current. A rank that lacks NCCL, or whose version is
  // another, fails it on all of them. NCCL refuses ranks that share a GPU.
  static Result<std::unique_ptr<NcclCommunicator>> create(const Result<std::shared_ptr<const NcclLibrary>>& library,
                                                          Bootstrap& bootstrap);
  // The caller's: neither destroyed nor aborted here.
  static Result<std::unique_ptr<NcclCommunicator>> adopt(std::shared_ptr<const NcclLibrary> library, nccl::Comm comm);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // The GPU of this rank, as cudaSetDevice counts.
  int device() const { return device_; }
  const NcclLibrary& library() const { return *library_; }

  // Enqueued on the stream, as NCCL's functions are.
  Status allReduce(const void* in, void* out, size_t count, fcclDataType_t dtype, fcclRedOp_t op, fcclStream_t stream);
  // `all` holds ranks() blocks of `bytes` bytes.
  Status allGather(const void* mine, void* all, size_t bytes, fcclStream_t stream);

  // What has become of enqueued calls. From any thread.
  Status asyncError();
  // From any thread: NCCL's waits end, and every later call is fcclInvalidUsage. The caller's communicator is only not
  // used any more.
  void abort();

 private:
  friend class NcclBuffer;
  friend class NcclWindow;
  class Inside;
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, nccl::Comm comm, bool own)
      : library_(std::move(library)), comm_(comm), own_(own) {}
  Status readFacts();
  template <class Call>
  Status call(const char* function, Call&& call);

  const std::shared_ptr<const NcclLibrary> library_;
  const nccl::Comm comm_;
  const bool own_;
  int rank_ = 0;
  int ranks_ = 0;
  int device_ = 0;
  std::atomic<int> inside_{0};  // threads that are in a function of NCCL with comm_
  std::atomic<bool> aborted_{false};
};

// Memory that NCCL knows as a symmetric window, at the same offset of which all ranks then find each other's.
class NcclWindow {
 public:
  // Collective; the GPU is current. The failure, the same on all ranks, is why there is none.
  static Result<std::unique_ptr<NcclWindow>> create(NcclCommunicator& communicator, Bootstrap& bootstrap, void* data,
                                                    size_t bytes);
  // Local: NCCL takes it back when all ranks have.
  ~NcclWindow();
  NcclWindow(const NcclWindow&) = delete;
  NcclWindow& operator=(const NcclWindow&) = delete;

  const void* data() const { return data_; }
  bool holds(const void* start, size_t bytes) const;

 private:
  NcclWindow(NcclCommunicator& communicator, void* data, size_t bytes)
      : communicator_(communicator), data_(data), bytes_(bytes) {}
  Status enroll();

  NcclCommunicator& communicator_;
  void* const data_;
  const size_t bytes_;
  nccl::Window window_ = nullptr;
};

// GPU memory of NCCL's own kind, which is made a symmetric window where NCCL has such.
class NcclBuffer {
 public:
  // Collective; the GPU is current. Without windows it is plain memory, and windowReason() says why.
  static Result<std::unique_ptr<NcclBuffer>> create(NcclCommunicator& communicator, Bootstrap& bootstrap, size_t bytes);
  ~NcclBuffer();
  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }
  // Empty: it is a symmetric window on every rank. Else why it is none, a sentence.
  const std::string& windowReason() const { return reason_; }

 private:
  NcclBuffer(NcclCommunicator& communicator, size_t bytes) : communicator_(communicator), bytes_(bytes) {}

  NcclCommunicator& communicator_;
  const size_t bytes_;
  void* data_ = nullptr;
  std::unique_ptr<NcclWindow> window_;
  std::string reason_;
};

}  // namespace fccl
