#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "transport/bootstrap.h"
#include "transport/bootstrap_test_hooks.h"
#include "transport/endpoint.h"
#include "transport/socket.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

namespace {

int scaled(int rounds) { return std::max(1, static_cast<int>(rounds / slowness())); }

std::string freePort() { return std::to_string(listenOn(0).value().port); }

// Every rank's number, several times over.
bool gathers(Bootstrap& bootstrap) {
  for (int round = 0; round < 3; ++round) {
    const auto all = bootstrap.exchange(bootstrap.rank() * 10 + round);
    if (!all.ok()) return false;
    for (int r = 0; r < bootstrap.ranks(); ++r) {
      if (all.value()[static_cast<size_t>(r)] != r * 10 + round) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("many groups form and go at the same time") {
  constexpr int kGroups = 16;
  constexpr int kRanks = 8;
  Failures failures;
  for (int round = 0; round < scaled(15); ++round) {
    std::vector<fcclUniqueId> ids;
    for (int i = 0; i < kGroups; ++i) ids.push_back(newId());
    runThreads(kGroups * kRanks, "many groups", Seconds(60), [&](int thread) {
      auto result =
          Bootstrap::connect(ids[static_cast<size_t>(thread / kRanks)], thread % kRanks, kRanks, bootstrapOptions());
      if (!result.ok()) return failures.add(result.status().message());
      if (!gathers(*result.value())) failures.add("wrong data");
    });
  }
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("500 groups on the same fixed port, with clients of former runs still sending") {
  BootstrapOptions options = bootstrapOptions();
  options.rendezvous = "127.0.0.1:" + freePort();
  const SocketAddress address = SocketAddress::parse(options.rendezvous).value().front();
  const size_t before = openDescriptors();
  std::atomic<bool> stop{false};
  std::atomic<int> sent{0};
  // Ranks of a run that is over: they know another secret, talk garbage, or only hold the connection.
  std::jthread stale([&] {
    std::vector<Fd> held;
    const std::string garbage(200, 'x');
    while (!stop.load(std::memory_order_relaxed)) {
      Result<Fd> fd = connectTo({&address, 1}, Deadline(milliseconds(20)), true);
      if (fd.ok()) {
        sent +=
            sendAll(fd.value(), garbage.data(), sent % 2 == 0 ? garbage.size() : 10, Deadline(milliseconds(10))).ok();
        held.push_back(std::move(fd.value()));
        if (held.size() > 20) held.erase(held.begin());
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::string errors;
  for (int round = 0; round < scaled(500) && errors.empty(); ++round) {
    // Half of the runs have their id, and with it the listener, from rank 0.
    const fcclUniqueId id = round % 2 == 0 ? newId(options) : packId({randomKey().value(), {}});
    errors = connectRanks(2, id, options).text();
  }
  stop = true;
  stale.join();
  CHECK(errors == "");
  CHECK(sent.load() > 0);
  CHECK(openDescriptors() == before);
}

TEST_CASE("500 groups that form and 500 that fail leave no descriptor") {
  connectRanks(3, newId());
  const size_t before = openDescriptors();
  std::string errors;
  for (int round = 0; round < scaled(500); ++round) errors += connectRanks(3, newId()).text();
  CHECK(errors == "");
  CHECK(openDescriptors() == before);
  struct Death {};
  constexpr BootstrapStep kSteps[] = {BootstrapStep::kRingConnect, BootstrapStep::kRingAccept,
                                      BootstrapStep::kRingCheck};
  std::mt19937 random(7);
  for (int round = 0; round < scaled(500); ++round) {
    const int dead = static_cast<int>(random() % 3);
    const BootstrapStep step = kSteps[random() % std::size(kSteps)];
    BootstrapTestHooks hooks;
    hooks.before = [&](int rank, BootstrapStep at) {
      if (rank == dead && at == step) throw Death();
    };
    BootstrapOptions options = bootstrapOptions();
    options.hooks = &hooks;
    const fcclUniqueId id = newId();
    const BootstrapGroup group = connectWith(3, "fails", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
      try {
        return Bootstrap::connect(id, rank, 3, options);
      } catch (const Death&) {
        return Status(fcclInProgress, "died");
      }
    });
    for (const Status& status : group.statuses) CHECK(!status.ok());
  }
  CHECK(openDescriptors() == before);
}

TEST_CASE("where descriptors run out the error says so and nothing is left behind") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit old = limit;
  const size_t before = openDescriptors();
  int failed = 0;
  int connected = 0;
  for (int spare = 0; spare < 30 && connected < 2; ++spare) {
    const fcclUniqueId id = newId();
    limit.rlim_cur = static_cast<rlim_t>(before + spare);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    const BootstrapGroup group = connectRanks(3, id, bootstrapOptions(milliseconds(200)));
    REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
    (group.allOk() ? connected : failed) += 1;
    if (group.statuses[0].ok() || !group.members.empty()) {
      // The id's listener may still be in the table if rank 0 did not get that far.
      const Status drained = Bootstrap::connect(id, 0, 1, bootstrapOptions()).status();
      CHECK((drained.ok() || drained.code() == fcclInvalidUsage));
    }
    for (const Status& status : group.statuses) {
      if (!status.ok()) CHECK(!status.message().empty());
    }
  }
  CHECK(failed > 5);
  CHECK(connected == 2);
  CHECK(openDescriptors() == before);
}

TEST_CASE("a descriptor table that is just full turns nobody away") {
  // One listener, one connection, and no descriptor left: a second accept finds none, and nobody who waits.
  Listener listener = std::move(listenOn(0, AF_INET).value());
  const std::array<uint8_t, 4> loopback = {127, 0, 0, 1};
  const std::vector<SocketAddress> address = {SocketAddress::ipv4(loopback.data(), listener.port)};
  const Deadline soon(milliseconds(5'000));
  const Fd client = std::move(connectTo(address, soon, false).value());
  int error = 0;
  const Fd accepted = acceptFrom(listener, &error);
  REQUIRE(accepted.valid());
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit old = limit;
  std::vector<Fd> fillers;
  for (;;) {  // no gap below the limit
    Fd filler(::dup(client.get()));
    const bool above = filler.get() > accepted.get() && filler.get() > client.get();
    fillers.push_back(std::move(filler));
    if (above) break;
  }
  limit.rlim_cur = static_cast<rlim_t>(fillers.back().get()) + 1;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const Fd none = acceptFrom(listener, &error);
  const int nobodyWaits = error;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
  const Fd second = std::move(connectTo(address, soon, false).value());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  pollfd waiting{listener.fd.get(), POLLIN, 0};
  CHECK(::poll(&waiting, 1, 5'000) == 1);
  const Fd noRoom = acceptFrom(listener, &error);
  const int oneWaits = error;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(!none.valid());
  CHECK(nobodyWaits == EAGAIN);
  CHECK(!noRoom.valid());
  CHECK(oneWaits == EMFILE);
}

TEST_CASE("a loop of collectives with random delays stays right") {
  BootstrapGroup group = connectRanks(7, newId());
  REQUIRE(group.text() == "");
  Failures failures;
  group.run(
      "random delays",
      [&](Bootstrap& bootstrap) {
        std::mt19937 delays(static_cast<unsigned>(bootstrap.rank()));
        std::mt19937 sizes(42);  // the same on every rank
        for (int round = 0; round < scaled(400); ++round) {
          if (delays() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays() % 2'000));
          const size_t bytes = sizes() % 5 == 0 ? sizes() % 100'000 : sizes() % 100;
          std::vector<unsigned char> all(7 * bytes);
          const auto value = [&](size_t r, size_t i) {
            return static_cast<unsigned char>(r * 37 + i + static_cast<size_t>(round));
          };
          for (size_t i = 0; i < bytes; ++i)
            all[static_cast<size_t>(bootstrap.rank()) * bytes + i] = value(static_cast<size_t>(bootstrap.rank()), i);
          if (const Status status = bootstrap.allGather(all.data(), bytes); !status.ok())
            return failures.add(status.message());
          for (size_t r = 0; r < 7; ++r) {
            for (size_t i = 0; i < bytes; ++i) {
              if (all[r * bytes + i] != value(r, i)) return failures.add("wrong byte");
            }
          }
        }
      },
      Seconds(60));
  CHECK(failures.text() == "0 failures");
}
