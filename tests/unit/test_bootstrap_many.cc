// Groups of more ranks than rank 0 holds connections of: they are called back.
#include <array>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"
#include "transport/bootstrap.h"
#include "transport/bootstrap_test_hooks.h"
#include "transport/endpoint.h"
#include "transport/gate.h"
#include "transport/socket.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

namespace {

constexpr int kRanks = 70;

// Connections that the end at `port` of this machine has and that are open, as the kernel lists them.
int openConnectionsAt(uint16_t port) {
  int count = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      words >> number >> local >> remote >> state;
      const auto localPort = std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16);
      count += localPort == port && state == "01" ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("rank 0 of many ranks holds no connection of those that wait") {
  const fcclUniqueId id = newId();
  const uint16_t port = unpackId(id).value().root.port;
  std::atomic<int> waiting{0};
  BootstrapTestHooks hooks;
  hooks.before = [&](int, BootstrapStep step) {
    // Relaxed: a count, read until it is reached.
    if (step == BootstrapStep::kWait) waiting.fetch_add(1, std::memory_order_relaxed);
  };
  BootstrapOptions options = bootstrapOptions();
  options.hooks = &hooks;
  int held = -1;
  BootstrapGroup group = connectWith(kRanks, "called back", [&](int rank) {
    if (rank == kRanks - 1) {  // the last one looks before it comes
      const Deadline patience(milliseconds(10'000));
      while (waiting.load(std::memory_order_relaxed) < kRanks - 2 && !patience.passed()) std::this_thread::yield();
      held = openConnectionsAt(port);
    }
    return Bootstrap::connect(id, rank, kRanks, options);
  });
  REQUIRE(group.text() == "");
  CHECK(waiting == kRanks - 1);
  CHECK(held == 0);
  Failures failures;
  group.run("all-gather", [&](Bootstrap& bootstrap) { checkAllGather(bootstrap, 40, 1, &failures); });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("every one of many ranks learns which are missing") {
  const fcclUniqueId id = newId();
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup group = connectWith(kRanks, "missing", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    if (rank == 3 || rank >= 67) return Status(fcclInProgress, "does not come");
    return Bootstrap::connect(id, rank, kRanks, bootstrapOptions(milliseconds(rank == 5 ? 900 : 20'000)));
  });
  CHECK(secondsSince(start) < 4 * slowness());
  for (int rank = 0; rank < 67; ++rank) {
    if (rank == 3) continue;
    const Status& status = group.statuses[static_cast<size_t>(rank)];
    CAPTURE(rank, status.message());
    CHECK(status.code() == fcclSystemError);
    CHECK(contains(status.message(), "ranks 3, 67-69 of 70 are missing after"));
  }
}

TEST_CASE("of many ranks one that comes twice, or with another number of ranks, fails on all at once") {
  const auto start = std::chrono::steady_clock::now();
  const fcclUniqueId first = newId();
  const BootstrapGroup twice = connectWith(kRanks, "rank twice", [&](int rank) {
    return Bootstrap::connect(first, rank == 69 ? 2 : rank, kRanks, bootstrapOptions());
  });
  for (const Status& status : twice.statuses) {
    CAPTURE(status.message());
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 2 came twice"));
  }
  const fcclUniqueId second = newId();
  const BootstrapGroup counts = connectWith(kRanks, "counts differ", [&](int rank) {
    return Bootstrap::connect(second, rank, rank == 1 ? 71 : kRanks, bootstrapOptions());
  });
  for (const Status& status : counts.statuses) {
    CAPTURE(status.message());
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 1 was started with 71 ranks, rank 0 with 70"));
  }
  CHECK(secondsSince(start) < 6 * slowness());
}

TEST_CASE("one of many ranks that ends while it waits is named, and nobody waits for it") {
  struct Death {};
  constexpr int kDead = 33;
  BootstrapTestHooks hooks;
  hooks.before = [&](int rank, BootstrapStep step) {
    if (rank == kDead && step == BootstrapStep::kWait) throw Death();  // all it holds is closed
  };
  BootstrapOptions options = bootstrapOptions();
  options.hooks = &hooks;
  const fcclUniqueId id = newId();
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup group = connectWith(kRanks, "death", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    try {
      return Bootstrap::connect(id, rank, kRanks, options);
    } catch (const Death&) {
      return Status(fcclInProgress, "died");
    }
  });
  CHECK(secondsSince(start) < 4 * slowness());
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kDead) continue;
    const Status& status = group.statuses[static_cast<size_t>(rank)];
    CAPTURE(rank, status.message());
    CHECK(status.code() == fcclRemoteError);
    // Those above it had been called already: they find the ring broken.
    if (rank < kDead) CHECK(contains(status.message(), "rank 33 ended before all ranks had arrived"));
  }
}

TEST_CASE("a gate lets in who is expected, whoever else knocks") {
  Listener listener = std::move(listenOn(0, AF_INET).value());
  const std::vector<SocketAddress> address = {
      SocketAddress::ipv4(std::array<uint8_t, 4>{127, 0, 0, 1}.data(), listener.port)};
  const Deadline soon(milliseconds(5'000));
  const auto knock = [&](std::string_view says) {
    Fd fd = std::move(connectTo(address, soon, false).value());
    CHECK(sendAll(fd, says.data(), says.size(), soon).ok());
    return fd;
  };
  Gate gate(listener, 4, [](const char* bytes) { return std::string_view(bytes, 4) == "here"; });
  const Fd silent = knock("");
  const Fd half = knock("he");
  const Fd other = knock("else");
  knock("");  // gone at once
  const Fd expected = knock("here and more");
  Result<Fd> came = gate.accept(nullptr, soon);
  REQUIRE(came.ok());
  std::array<char, 9> rest{};
  CHECK(receiveAll(came.value(), rest.data(), rest.size(), soon).ok());
  CHECK(std::string_view(rest.data(), rest.size()) == " and more");
  char byte = 0;
  CHECK(receiveAll(other, &byte, 1, soon).code() == fcclRemoteError);  // turned away

  CHECK(gate.accept(nullptr, Deadline(milliseconds(20))).status().code() == fcclSystemError);
  CHECK(sendAll(half, "re", 2, soon).ok());  // the rest of what the second one has to say
  CHECK(gate.accept(nullptr, soon).ok());

  Listener beside = std::move(listenOn(0, AF_INET).value());
  const std::vector<SocketAddress> there = {
      SocketAddress::ipv4(std::array<uint8_t, 4>{127, 0, 0, 1}.data(), beside.port)};
  Fd own = std::move(connectTo(there, soon, false).value());
  beside.close();
  CHECK(gate.accept(&own, soon).status().code() == fcclRemoteError);
}
