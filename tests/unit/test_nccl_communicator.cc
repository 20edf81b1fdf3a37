// Communicators of NCCL, over the stand-in: ranks are threads, buffers ordinary memory.
#include <dlfcn.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/fake_nccl/fake_nccl.h"
#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/text.h"
#include "transport/nccl_communicator.h"

using namespace fccl;
using namespace fccl::test;

namespace {

using Communicators = std::vector<std::unique_ptr<NcclCommunicator>>;

struct Ranks {
  explicit Ranks(int ranks) : group(connectRanks(ranks, newId())), made(static_cast<size_t>(ranks)) {
    statuses.resize(made.size());
    group.run("ncclCommInitRank", [&](Bootstrap& bootstrap) {
      const auto at = static_cast<size_t>(bootstrap.rank());
      auto result = NcclCommunicator::create(fake().library(), bootstrap);
      statuses[at] = result.status();
      if (result.ok()) made[at] = std::move(result.value());
    });
  }
  void run(const std::function<Status(NcclCommunicator&, Bootstrap&)>& body) {
    group.run("ranks", [&](Bootstrap& bootstrap) {
      const auto at = static_cast<size_t>(bootstrap.rank());
      statuses[at] = body(*made[at], bootstrap);
    });
  }
  bool allOk() const {
    return std::all_of(statuses.begin(), statuses.end(), [](const Status& status) { return status.ok(); });
  }

  BootstrapGroup group;
  Communicators made;
  std::vector<Status> statuses;
};

}  // namespace

TEST_CASE("NCCL communicator: all-reduce and all-gather of every rank's data", "[nccl]") {
  fake().reset();
  for (const int ranks : {1, 2, 5}) {
    Ranks all(ranks);
    REQUIRE(all.allOk());
    all.run([&](NcclCommunicator& communicator, Bootstrap&) -> Status {
      std::vector<float> data(1000);
      std::iota(data.begin(), data.end(), static_cast<float>(communicator.rank()));
      std::vector<float> sum(data.size());
      Status done = communicator.allReduce(data.data(), sum.data(), data.size(), fcclFloat32, fcclSum, nullptr);
      if (!done.ok()) return done;
      for (size_t i = 0; i < sum.size(); i++) {
        const float wanted =
            static_cast<float>(ranks) * static_cast<float>(i) + static_cast<float>(ranks * (ranks - 1)) / 2;
        if (sum[i] != wanted) return failure(fcclInternalError, "{} in place of {}", sum[i], wanted);
      }
      std::vector<int> gathered(static_cast<size_t>(ranks));
      const int mine = communicator.rank() * 7;
      done = communicator.allGather(&mine, gathered.data(), sizeof mine, nullptr);
      if (!done.ok()) return done;
      for (int r = 0; r < ranks; r++) {
        if (gathered[static_cast<size_t>(r)] != r * 7) return failure(fcclInternalError, "wrong block of rank {}", r);
      }
      return {};
    });
    for (const Status& status : all.statuses) CHECK(status.message() == "");
    CHECK(all.made[0]->ranks() == ranks);
    all.made.clear();
    CHECK(fake().liveComms() == 0);
  }
}

TEST_CASE("NCCL communicator: a step that fails on one rank fails the creation on all, and leaves nothing", "[nccl]") {
  for (const char* function : {"ncclGetUniqueId", "ncclCommUserRank", "ncclCommCuDevice"}) {
    INFO(function);
    fake().reset();
    fake().fail(function, 1, 2);
    Ranks all(3);
    for (const Status& status : all.statuses) {
      CHECK(status.code() == fcclSystemError);
      CHECK(contains(status.message(), function));
      CHECK(contains(status.message(), "NCCL 2.28.3 ("));
      CHECK(contains(status.message(), "fake failure of"));
    }
    CHECK(fake().liveComms() == 0);
  }
}

TEST_CASE("NCCL communicator: a rank without NCCL, or with another version, fails the creation on all", "[nccl]") {
  fake().reset();
  const std::shared_ptr<const NcclLibrary> old = [] {
    fake().setVersion(22100);
    return fake().library();
  }();
  fake().setVersion(22803);
  BootstrapGroup group = connectRanks(2, newId());
  std::vector<Status> statuses(2);
  const auto createWith = [&](const Result<std::shared_ptr<const NcclLibrary>>& ofRank1) {
    group.run("ncclCommInitRank", [&](Bootstrap& bootstrap) {
      const auto own = bootstrap.rank() == 0 ? fake().library() : ofRank1;
      statuses[static_cast<size_t>(bootstrap.rank())] = NcclCommunicator::create(own, bootstrap).status();
    });
  };
  createWith(failure(fcclSystemError, "there is no NCCL here."));
  for (const Status& status : statuses) CHECK(contains(status.message(), "there is no NCCL here."));
  createWith(old);
  for (const Status& status : statuses)
    CHECK(contains(status.message(), "rank 0 has NCCL 2.28.3 and rank 1 NCCL 2.21.0"));
  CHECK(fake().count("ncclCommInitRank") == 0);
}

TEST_CASE("NCCL communicator: NCCL's codes become FCCL's, with its own words", "[nccl]") {
  fake().reset();
  Ranks one(1);
  REQUIRE(one.allOk());
  float value = 1;
  for (int code = 1; code <= 9; code++) {
    fake().fail("ncclAllReduce", 1, code);
    const Status status = one.made[0]->allReduce(&value, &value, 1, fcclFloat32, fcclSum, nullptr);
    CHECK(status.code() == (code <= 7 ? static_cast<fcclResult_t>(code) : fcclInternalError));
    CHECK(contains(status.message(), "ncclAllReduce of NCCL 2.28.3 ("));
    CHECK(contains(status.message(), "fake error: fake failure of ncclAllReduce."));
  }
  CHECK(one.made[0]->allReduce(&value, &value, 1, fcclFloat32, fcclSum, nullptr).ok());
}

TEST_CASE("NCCL communicator: errors of enqueued calls", "[nccl]") {
  fake().reset();
  Ranks one(1);
  REQUIRE(one.allOk());
  CHECK(one.made[0]->asyncError().ok());
  fake().setAsyncError(6);
  CHECK(one.made[0]->asyncError().code() == fcclRemoteError);
  CHECK(contains(one.made[0]->asyncError().message(), "ncclCommGetAsyncError"));
  fake().setAsyncError(7);
  CHECK(contains(one.made[0]->asyncError().message(), "still in progress"));
}

TEST_CASE("NCCL communicator: an abort ends what waits, and later calls are refused", "[nccl]") {
  fake().reset();
  Ranks all(2);
  REQUIRE(all.allOk());
  Status waited;
  {
    // Rank 1 never comes.
    std::jthread waiting([&] {
      float value = 1;
      waited = all.made[0]->allReduce(&value, &value, 1, fcclFloat32, fcclSum, nullptr);
    });
    while (fake().count("ncclAllReduce") == 0) std::this_thread::yield();
    all.made[0]->abort();
    all.made[0]->abort();
  }
  CHECK(contains(waited.message(), "aborted"));
  float value = 1;
  const Status refused = all.made[0]->allReduce(&value, &value, 1, fcclFloat32, fcclSum, nullptr);
  CHECK(refused.code() == fcclInvalidUsage);
  CHECK(all.made[0]->asyncError().code() == fcclInvalidUsage);
  CHECK(fake().count("ncclCommAbort") == 1);
  all.made.clear();
  CHECK(fake().count("ncclCommDestroy") == 1);  // the other rank's
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL communicator: the caller's own is used, and neither destroyed nor aborted", "[nccl]") {
  fake().reset();
  nccl::Comm own = nullptr;
  const auto library = fake().library();
  const NcclLibrary::Functions& f = library->functions();
  nccl::UniqueId id{};
  REQUIRE(f.getUniqueId(&id) == 0);
  REQUIRE(f.commInitRank(&own, 1, id, 0) == 0);
  {
    auto adopted = NcclCommunicator::adopt(fake().library(), own);
    REQUIRE(adopted.ok());
    CHECK(adopted.value()->ranks() == 1);
    adopted.value()->abort();
  }
  CHECK(fake().count("ncclCommAbort") + fake().count("ncclCommDestroy") == 0);
  // One that is not ready, as a communicator of a non-blocking ncclCommInitRankConfig may be.
  fake().setAsyncError(7);
  CHECK(NcclCommunicator::adopt(fake().library(), own).status().code() == fcclInvalidUsage);
  CHECK(f.commDestroy(own) == 0);
}

TEST_CASE("NCCL buffer: a symmetric window from 2.27 on, else plain memory and the reason", "[nccl]") {
  struct Expected {
    int version;
    bool refused;
    const char* reason;
  };
  for (const Expected& e : {Expected{22803, false, ""},
                            {22700, false, ""},
                            {22803, true, "no symmetric windows here"},
                            {22699, false, "from 2.27.0 on, and this process has NCCL 2.26.99"},
                            {21903, false, "from 2.27.0 on, and this process has NCCL 2.19.3"}}) {
    INFO(e.version);
    fake().reset();
    fake().setVersion(e.version);
    fake().refuseWindows(e.refused);
    Ranks all(2);
    REQUIRE(all.allOk());
    std::vector<std::unique_ptr<NcclBuffer>> buffers(2);
    all.run([&](NcclCommunicator& communicator, Bootstrap& bootstrap) -> Status {
      auto made = NcclBuffer::create(communicator, bootstrap, 10'000);
      if (made.ok()) buffers[static_cast<size_t>(bootstrap.rank())] = std::move(made.value());
      return made.status();
    });
    for (const Status& status : all.statuses) CHECK(status.message() == "");
    for (const auto& buffer : buffers) {
      REQUIRE(buffer != nullptr);
      CHECK(buffer->data() != nullptr);
      CHECK(contains(buffer->windowReason(), e.reason));
      CHECK(buffer->windowReason().empty() == (e.reason[0] == '\0'));
    }
    CHECK(fake().liveWindows() == (e.reason[0] == '\0' ? 2 : 0));
    buffers.clear();
    CHECK(fake().liveWindows() == 0);
    CHECK(fake().liveBytes() == 0);
  }
}

TEST_CASE("NCCL window: of memory that begins at a page, on all ranks or none", "[nccl]") {
  fake().reset();
  Ranks all(2);
  REQUIRE(all.allOk());
  constexpr size_t kBytes = 8192;
  alignas(4096) static char memory[2][kBytes + 4096];
  std::vector<std::unique_ptr<NcclWindow>> windows(2);
  const auto make = [&](size_t skewOfRank1) {
    all.run([&](NcclCommunicator& communicator, Bootstrap& bootstrap) -> Status {
      const auto rank = static_cast<size_t>(bootstrap.rank());
      auto made = NcclWindow::create(communicator, bootstrap, memory[rank] + (rank == 1 ? skewOfRank1 : 0), kBytes);
      if (made.ok()) windows[rank] = std::move(made.value());
      return made.status();
    });
  };
  make(64);
  for (const Status& status : all.statuses) CHECK(contains(status.message(), "is not at the beginning of a page"));
  CHECK(fake().liveWindows() == 0);
  make(4096);
  for (const Status& status : all.statuses) CHECK(status.message() == "");
  CHECK(fake().liveWindows() == 2);
  const NcclWindow& window = *windows[0];
  CHECK(window.holds(memory[0], kBytes));
  CHECK(window.holds(memory[0] + 100, kBytes - 100));
  CHECK(!window.holds(memory[0] + 100, kBytes));
  CHECK(!window.holds(memory[0] - 1, 1));
  CHECK(!window.holds(nullptr, 1));
  windows.clear();
  CHECK(fake().liveWindows() == 0);
}

TEST_CASE("NCCL buffer: no memory on one rank", "[nccl]") {
  fake().reset();
  Ranks all(2);
  REQUIRE(all.allOk());
  fake().fail("ncclMemAlloc", 2, 1);
  all.run([&](NcclCommunicator& communicator, Bootstrap& bootstrap) {
    return NcclBuffer::create(communicator, bootstrap, 4096).status();
  });
  for (const Status& status : all.statuses) {
    CHECK(status.code() == fcclUnhandledCudaError);
    CHECK(contains(status.message(), "ncclMemAlloc"));
  }
  CHECK(fake().liveBytes() == 0);
}
