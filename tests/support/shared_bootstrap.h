// A Bootstrap over memory that the ranks already share, for tests of what stands on a Bootstrap: ranks are threads,
// forked processes, or both. Make the group first, then fork or start threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "transport/bootstrap.h"

namespace fccl::test {

class SharedGroup {
 public:
  static constexpr size_t kMaxBytes = 1024;  // of one rank's block in an all-gather

  explicit SharedGroup(int ranks);
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;
  ~SharedGroup();

  // `beforeCall`, where given, runs before the n-th call (from 0) of this rank: to delay or to kill it there.
  std::unique_ptr<Bootstrap> member(int rank, std::chrono::milliseconds timeout = std::chrono::seconds(20),
                                    std::function<void(int n)> beforeCall = nullptr);
  int ranks() const { return ranks_; }
  // Makes all calls fail, as a connection does whose other end has died.
  void breakUp();

  struct State;

 private:
  State* state_;
  size_t mapped_;
  int ranks_;
};

}  // namespace fccl::test
