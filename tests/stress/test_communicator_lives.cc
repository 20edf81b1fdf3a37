// Communicators made and destroyed by the hundred: at the same time, one after the other, and where it fails.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/thread_ranks.h"
#include "transport/socket.h"

using namespace fccl::test;

namespace {

// One communicator of `ranks` threads: made, used once, destroyed. What goes wrong is added to `failures`.
void live(const fcclUniqueId& id, int rank, int ranks, const fcclConfig_t& config, Failures* failures) {
  fcclComm_t comm = nullptr;
  if (fcclCommInit(&comm, ranks, id, rank, &config) != fcclSuccess) return failures->add(fcclGetLastError(nullptr));
  const Rank self{rank, ranks, comm, failures};
  auto value = static_cast<float>(rank + 1);
  self.ok(fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr), "all-reduce");
  const int sum = ranks * (ranks + 1) / 2;
  self.expect(value == static_cast<float>(sum), "sum");
  self.ok(fcclCommDestroy(comm), "destroy");
}

void liveTogether(int communicators, int ranks, int rounds) {
  const fcclConfig_t config = testConfig(4096);
  Failures failures;
  for (int round = 0; round < rounds && failures.none(); ++round) {
    std::vector<fcclUniqueId> ids(static_cast<size_t>(communicators));
    for (fcclUniqueId& id : ids) REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
    runThreads(communicators * ranks, "many communicators", Seconds(60), [&](int thread) {
      live(ids[static_cast<size_t>(thread / ranks)], thread % ranks, ranks, config, &failures);
    });
  }
  if (!failures.none()) FAIL(failures.text());
}

size_t residentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  }
  return 0;
}

struct Footprint {
  size_t descriptors = openDescriptors();
  size_t mappings = mappedLines();
  size_t resident = residentKilobytes();
};

void expectFlat(const Footprint& before) {
  const Footprint after;
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.mappings <= before.mappings + 8);  // the heap's own
#if !defined(__SANITIZE_ADDRESS__)  // keeps freed memory back, to see it used, and reports what was never freed itself
  CHECK(after.resident < before.resident + (8 << 10));
#endif
}

// An initialisation of 3 ranks that fails in a way that depends on the round.
void failOnce(int round) {
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  std::vector<fcclResult_t> results(3, fcclInternalError);
  runThreads(3, "an initialisation that fails", Seconds(30), [&](int rank) {
    fcclConfig_t config = testConfig(4096);
    int asRank = rank;
    if (rank == round % 3) {
      switch (round / 3 % 4) {
        case 0: config.slotBytes = 8192; break;           // another setting than the others'
        case 1: config.slotBytes = -3; break;             // refused at once: the others miss this rank
        case 2: asRank = (rank + 1) % 3; break;           // a rank twice
        default: config.netName = "doesnotexist"; break;  // no interface
      }
    }
    config.initTimeoutMs = static_cast<int>(40 * slowness());
    fcclComm_t comm = nullptr;
    results[static_cast<size_t>(rank)] = fcclCommInit(&comm, 3, id, asRank, &config);
    if (comm != nullptr) results[static_cast<size_t>(rank)] = fcclSuccess;
  });
  for (const fcclResult_t result : results) REQUIRE(result != fcclSuccess);
  // The listener of an id that no rank 0 has taken over.
  fcclComm_t alone = nullptr;
  const fcclConfig_t config = testConfig(4096);
  if (fcclCommInit(&alone, 1, id, 0, &config) == fcclSuccess) REQUIRE(fcclCommDestroy(alone) == fcclSuccess);
}

}  // namespace

TEST_CASE("stress: 16 communicators of 8 ranks come and go at the same time", "[stress]") {
  liveTogether(16, 8, slowness() > 1 ? 2 : 10);
}

TEST_CASE("stress: 64 communicators of 8 ranks come and go at the same time, 200 rounds", "[.soak]") {
  liveTogether(64, 8, 200);
}

TEST_CASE("stress: 500 lives of a communicator leave nothing behind", "[stress]") {
  const auto lives = [](int times) { liveTogether(1, 3, times); };
  lives(20);
  const Footprint before;
  lives(slowness() > 1 ? 50 : 500);
  expectFlat(before);
}

TEST_CASE("stress: 500 initialisations that fail leave nothing behind", "[stress]") {
  for (int round = 0; round < 24; ++round) failOnce(round);
  const Footprint before;
  for (int round = 0; round < (slowness() > 1 ? 48 : 500); ++round) failOnce(round);
  expectFlat(before);
}

TEST_CASE("stress: 500 communicators over the same fixed address", "[stress]") {
  const std::string port = std::to_string(fccl::listenOn(0).value().port);
  const ScopedVariable variable("FCCL_COMM_ID", ("127.0.0.1:" + port).c_str());
  liveTogether(1, 2, slowness() > 1 ? 50 : 500);
}
