// Ranks as threads at the level of the bootstrap: no communicator, no library.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/thread_ranks.h"
#include "transport/bootstrap.h"

namespace fccl::test {

struct BootstrapGroup {
  std::vector<std::unique_ptr<Bootstrap>> members;  // null where connect() failed
  std::vector<Status> statuses;

  bool allOk() const;
  // One line per rank that failed.
  std::string text() const;
  // Runs `body` on all ranks that are connected, one thread each.
  void run(std::string_view what, const std::function<void(Bootstrap&)>& body, Seconds limit = Seconds(30));
};

// Options with a time limit that suits this build.
BootstrapOptions bootstrapOptions(std::chrono::milliseconds timeout = std::chrono::milliseconds(20'000));

// An id of this process; a failure aborts the program.
fcclUniqueId newId(const BootstrapOptions& options = bootstrapOptions());

// connect() of one rank, as the test wants it.
using ConnectRank = std::function<Result<std::unique_ptr<Bootstrap>>(int rank)>;

BootstrapGroup connectWith(int ranks, std::string_view what, const ConnectRank& connect, Seconds limit = Seconds(40));
// All ranks with the same id and options.
BootstrapGroup connectRanks(int ranks, const fcclUniqueId& id, const BootstrapOptions& options = bootstrapOptions(),
                            Seconds limit = Seconds(40));

// An all-gather of `bytes` bytes per rank whose values depend on rank, place and round; what is wrong goes to
// `failures`.
void checkAllGather(Bootstrap& bootstrap, size_t bytes, int round, Failures* failures);

}  // namespace fccl::test
