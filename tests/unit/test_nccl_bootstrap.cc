// How ranks that have an NCCL communicator find each other, over the stand-in; and what fcclCommInitNccl refuses.
#include <algorithm>
#include <vector>

#include "fccl_nccl.h"
#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"
#include "transport/nccl_bootstrap.h"

using namespace fccl;
using namespace fccl::test;

namespace {

// One communicator of the stand-in per rank.
std::vector<nccl::Comm> ncclComms(int ranks) {
  const auto library = fake().library();
  nccl::UniqueId id{};
  REQUIRE(library->functions().getUniqueId(&id) == 0);
  std::vector<nccl::Comm> comms(static_cast<size_t>(ranks));
  runThreads(ranks, "ncclCommInitRank", Seconds(20),
             [&](int rank) { library->functions().commInitRank(&comms[static_cast<size_t>(rank)], ranks, id, rank); });
  return comms;
}

void destroy(const std::vector<nccl::Comm>& comms) {
  for (nccl::Comm comm : comms) fake().library()->functions().commDestroy(comm);
}

// agreeOnId() on all ranks; `failing` is the rank that has failed before, or -1.
std::vector<Result<fcclUniqueId>> agree(const std::vector<nccl::Comm>& comms, int failing) {
  std::vector<Result<fcclUniqueId>> ids(comms.size(), Status(fcclInternalError, "not called"));
  const int ranks = static_cast<int>(comms.size());
  runThreads(ranks, "agreeOnId", Seconds(20), [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    auto over = NcclCommunicator::adopt(fake().library(), comms[at]);
    const Status mine = rank == failing ? failure(fcclInvalidArgument, "slotBytes is 3.") : Status();
    ids[at] = agreeOnId(rank, ranks, mine, bootstrapOptions(), [&](const void* own, void* all, size_t bytes) {
      return over.value()->allGather(own, all, bytes, nullptr);
    });
  });
  return ids;
}

}  // namespace

TEST_CASE("NCCL bootstrap: one all-gather over NCCL, and the ranks form a group", "[nccl]") {
  fake().reset();
  for (const int ranks : {1, 3}) {
    const std::vector<nccl::Comm> comms = ncclComms(ranks);
    const auto ids = agree(comms, -1);
    for (const auto& id : ids) {
      INFO(id.status().message());
      REQUIRE(id.ok());
    }
    BootstrapGroup group = connectWith(ranks, "connect", [&](int rank) {
      return Bootstrap::connect(ids[static_cast<size_t>(rank)].value(), rank, ranks, bootstrapOptions());
    });
    INFO(group.text());
    CHECK(group.allOk());
    destroy(comms);
  }
  CHECK(fake().count("ncclAllGather") == 4);
  CHECK(fake().count("ncclAllReduce") == 0);
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL bootstrap: a rank that has failed before tells the others, in place of leaving them waiting",
          "[nccl]") {
  fake().reset();
  const std::vector<nccl::Comm> comms = ncclComms(3);
  for (const int failing : {0, 2}) {
    const auto ids = agree(comms, failing);
    for (int rank = 0; rank < 3; rank++) {
      const Status& status = ids[static_cast<size_t>(rank)].status();
      CHECK(status.code() == fcclInvalidArgument);
      const std::string prefix = rank == failing ? "" : "rank " + std::to_string(failing) + ": ";
      CHECK(status.message() == prefix + "slotBytes is 3.");
    }
  }
  fake().fail("ncclAllGather", 1, 6);
  const auto ids = agree({comms[0]}, -1);
  CHECK(ids.front().status().code() == fcclRemoteError);
  CHECK(contains(ids.front().status().message(), "ncclAllGather of NCCL"));
  destroy(comms);
}

TEST_CASE("fcclCommInitNccl: what is wrong by itself", "[nccl]") {
  fake().reset();
  fcclComm_t comm = reinterpret_cast<fcclComm_t>(1);
  const auto refused = [&](fcclResult_t result, fcclResult_t wanted, const char* words) {
    CHECK(result == wanted);
    INFO(fcclGetLastError(nullptr));
    CHECK(contains(fcclGetLastError(nullptr), words));
  };
  const std::vector<nccl::Comm> comms = ncclComms(1);
  auto* const ncclComm = reinterpret_cast<struct ncclComm*>(comms.front());
  refused(fcclCommInitNccl(nullptr, ncclComm, nullptr), fcclInvalidArgument, "comm is NULL");
  refused(fcclCommInitNccl(&comm, nullptr, nullptr), fcclInvalidArgument, "ncclComm is NULL");
  CHECK(comm == nullptr);
  CHECK(fcclGroupStart() == fcclSuccess);
  refused(fcclCommInitNccl(&comm, ncclComm, nullptr), fcclInvalidUsage, "in a group");
  CHECK(fcclGroupEnd() != fcclSuccess);
  fake().setAsyncError(7);
  refused(fcclCommInitNccl(&comm, ncclComm, nullptr), fcclInvalidUsage, "still in progress");
  fake().setAsyncError(0);
  // Nothing of NCCL's was enqueued so far.
  CHECK(fake().count("ncclAllGather") == 0);
  destroy(comms);
}
