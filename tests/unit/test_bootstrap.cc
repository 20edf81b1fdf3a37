#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "transport/bootstrap.h"
#include "transport/bootstrap_test_hooks.h"
#include "transport/endpoint.h"
#include "transport/interfaces.h"
#include "transport/rendezvous.h"
#include "transport/siphash.h"
#include "transport/socket.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A byte that depends on the rank, the place and the round.
char pattern(int rank, size_t index, int round) {
  return static_cast<char>(static_cast<size_t>(rank) * 131 + index * 7 + index / 251 + static_cast<size_t>(round) * 29);
}

void checkAllGather(Bootstrap& bootstrap, size_t bytes, int round, Failures* failures) {
  const size_t ranks = static_cast<size_t>(bootstrap.ranks());
  std::vector<char> all(ranks * bytes + 16, '\x5a');
  for (size_t i = 0; i < bytes; ++i) {
    all[static_cast<size_t>(bootstrap.rank()) * bytes + i] = pattern(bootstrap.rank(), i, round);
  }
  const Status status = bootstrap.allGather(all.data(), bytes);
  if (!status.ok()) return failures->add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < bytes; ++i) {
      if (all[r * bytes + i] == pattern(static_cast<int>(r), i, round)) continue;
      return failures->add(fmt::format("rank {}: byte {} of rank {}'s {} is wrong", bootstrap.rank(), i, r, bytes));
    }
  }
  for (size_t i = 0; i < 16; ++i) {
    if (all[ranks * bytes + i] != '\x5a') return failures->add("written beyond the end");
  }
}

IdContents contentsOf(const fcclUniqueId& id) { return unpackId(id).value(); }

std::vector<SocketAddress> addressesOf(const fcclUniqueId& id) { return candidates(contentsOf(id).root, 0); }

Fd knock(const fcclUniqueId& id) {
  return std::move(connectTo(addressesOf(id), Deadline(milliseconds(5'000)), false).value());
}

std::string freePort() { return std::to_string(listenOn(0).value().port); }

NetworkInterface interface(const std::string& name, bool up, bool running, const std::string& address) {
  NetworkInterface result;
  result.name = name;
  result.up = up;
  result.running = running;
  result.loopback = name == "lo";
  if (!address.empty()) result.addresses = SocketAddress::parse(address + ":1").value();
  return result;
}

constexpr int kNoNamespace = 77;

// Runs `child` in a forked process and `parent` here; what both return.
std::pair<int, int> inChild(
    const std::function<int()>& child, const std::function<int()>& parent = [] { return 0; }) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  const int own = parent();
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, own};
}

int connectRank(const fcclUniqueId& id, int rank, int ranks) {
  const auto result = Bootstrap::connect(id, rank, ranks, bootstrapOptions());
  return result.ok() && result.value()->barrier().ok() ? 0 : 1;
}

bool enterNetworkNamespace() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const uid_t uid = getuid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  return true;
}

bool loopbackUp() {
  const Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP;
  return ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

}  // namespace

TEST_CASE("SipHash-2-4 gives the published values") {
  const Key128 key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::array<unsigned char, 16> input{};
  std::iota(input.begin(), input.end(), static_cast<unsigned char>(0));
  const std::array<uint64_t, 9> published = {0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a,
                                             0x85676696d7fb7e2d, 0xcf2794e0277187b7, 0x18765564cd99a68d,
                                             0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462};
  for (size_t bytes = 0; bytes < published.size(); ++bytes)
    CHECK(sipHash24(key, input.data(), bytes) == published[bytes]);
  CHECK(sipHash24(key, input.data(), 15) == 0xa129ca6149be45e5);
}

TEST_CASE("missing ranks are folded into ranges") {
  CHECK(foldRanges(std::vector<int>{}) == "");
  CHECK(foldRanges(std::vector<int>{3}) == "3");
  CHECK(foldRanges(std::vector<int>{3, 4}) == "3, 4");
  CHECK(foldRanges(std::vector<int>{3, 7, 8, 9, 10, 11, 12}) == "3, 7-12");
  std::vector<int> odd(500);
  for (size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<int>(2 * i + 1);
  CHECK(foldRanges(odd, 20) == "1, 3, 5, 7, 9, 11 and 494 more");
}

TEST_CASE("host:port addresses are parsed") {
  CHECK(SocketAddress::parse("192.0.2.7:4711").value().front().text() == "192.0.2.7:4711");
  CHECK(SocketAddress::parse("[2001:db8::1]:65535").value().front().text() == "[2001:db8::1]:65535");
  CHECK(SocketAddress::parse("[fe80::1%lo]:9").value().front().scope() == if_nametoindex("lo"));
  CHECK(SocketAddress::parse("127.0.0.1:1").value().front().isLoopback());
  for (const char* bad : {"", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "::1:80", "[::1]", "[::1]80",
                          "[no-number]:80", "no.such.host.invalid:80"}) {
    const auto result = SocketAddress::parse(bad);
    INFO(bad);
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(contains(result.status().message(), fmt::format("'{}'", bad)));
  }
}

TEST_CASE("the interface is chosen as FCCL_SOCKET_IFNAME says") {
  const std::vector<NetworkInterface> all = {
      interface("lo", true, true, "127.0.0.1"),       interface("veth0", true, false, "198.51.100.1"),
      interface("docker0", true, true, "172.17.0.1"), interface("eth10", true, true, "192.0.2.10"),
      interface("eth1", true, true, "192.0.2.1"),     interface("ib0", true, true, "203.0.113.1"),
      interface("eth2", false, false, "192.0.2.2"),   interface("eth3", true, true, "")};
  const auto chosen = [&](const std::string& wanted, const SocketAddress& preferred = {}) {
    const auto result = chooseInterface(all, wanted, preferred);
    return result.ok() ? result.value().name : "error";
  };
  CHECK(chosen("") == "eth10");
  CHECK(chosen("eth1") == "eth1");
  CHECK(chosen("eth") == "eth10");
  CHECK(chosen("ib,eth") == "ib0");
  CHECK(chosen("nothing,docker") == "docker0");
  CHECK(chosen("lo") == "lo");
  CHECK(chosen("^eth") == "ib0");
  CHECK(chosen("^eth,ib") == "docker0");
  CHECK(chosen("^eth,ib,docker") == "veth0");
  CHECK(chosen("^eth,ib,docker,veth") == "lo");
  CHECK(chosen("", all[5].addresses.front()) == "ib0");
  CHECK(chosen("eth1", all[5].addresses.front()) == "eth1");
  for (const char* bad : {"doesnotexist", "eth2", "eth3", "^", ",", "^lo,veth,docker,eth,ib"}) {
    const auto result = chooseInterface(all, bad);
    INFO(bad);
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(contains(result.status().message(), fmt::format("'{}'", bad)));
    CHECK(contains(result.status().message(), "lo (127.0.0.1), veth0 (198.51.100.1)"));
    CHECK(contains(result.status().message(), "eth2 (down, 192.0.2.2), eth3 (no address)"));
  }
  CHECK(chooseInterface({all[0]}, "").value().name == "lo");
  CHECK(chooseInterface({all[1], all[0]}, "").value().name == "veth0");
  CHECK(chooseInterface({}, "").status().code() == fcclSystemError);
}

TEST_CASE("an endpoint is reached over loopback in the same place, else by its addresses") {
  Listener listener;
  listener.port = 4711;
  listener.ipv4 = listener.ipv6 = true;
  NetworkInterface eth = interface("eth0", true, true, "192.0.2.1");
  const SocketAddress linkLocal = SocketAddress::parse("[fe80::2%lo]:1").value().front();
  eth.addresses.push_back(linkLocal);
  Endpoint endpoint = makeEndpoint(listener, eth);
  const auto texts = [&] {
    std::vector<std::string> result;
    for (const SocketAddress& address : candidates(endpoint, 77)) result.push_back(address.text());
    return result;
  };
  if (hostIdentity() == 0) FCCL_SKIP("this machine shows no boot id or network namespace in /proc");
  CHECK(texts() == std::vector<std::string>{"127.0.0.1:4711", "[::1]:4711", "192.0.2.1:4711", "[fe80::2%lo]:4711"});
  endpoint.host ^= 1;  // another machine, where the number of the interface means nothing
  CHECK(texts() == std::vector<std::string>{"192.0.2.1:4711", "[fe80::2%77]:4711"});
  endpoint.preferredFamily = 6;
  CHECK(texts() == std::vector<std::string>{"[fe80::2%77]:4711", "192.0.2.1:4711"});
}

TEST_CASE("an id that is not one is refused with a sentence") {
  const fcclUniqueId good = newId();
  CHECK(unpackId(good).ok());
  const auto refused = [&](const fcclUniqueId& id, const std::string& word) {
    const auto result = Bootstrap::connect(id, 0, 2, bootstrapOptions(milliseconds(1'000)));
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(contains(result.status().message(), word));
  };
  refused(fcclUniqueId{}, "not a unique id");
  fcclUniqueId id = good;
  id.internal[6] = 9;
  refused(id, "version 9");
  for (const size_t byte : {size_t{8}, size_t{20}, size_t{30}, size_t{60}}) {
    id = good;
    id.internal[byte] ^= 0x10;
    refused(id, "checksum");
  }
  // Nothing is lost by that: the id still serves its group.
  CHECK(connectRanks(2, good).text() == "");
}

TEST_CASE("bad arguments are refused") {
  const fcclUniqueId id = newId();
  for (const auto& [rank, ranks] : {std::pair(0, 0), {0, -1}, {-1, 2}, {2, 2}}) {
    const auto result = Bootstrap::connect(id, rank, ranks, bootstrapOptions());
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
  }
  BootstrapOptions options;
  options.timeout = milliseconds(-1);
  CHECK(Bootstrap::connect(id, 0, 1, options).status().code() == fcclInvalidArgument);
  CHECK(Bootstrap::connect(id, 0, 1, bootstrapOptions()).ok());
}

TEST_CASE("all-gather, barrier and agreement on 1, 2, 3 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    BootstrapGroup group = connectRanks(ranks, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    std::atomic<int> entered{0};
    group.run("collectives", [&](Bootstrap& bootstrap) {
      if (bootstrap.ranks() != ranks) failures.add("wrong number of ranks");
      int round = 0;
      for (const size_t bytes : {0, 1, 8, 24, 1000, 65'536, 300'001})
        checkAllGather(bootstrap, bytes, ++round, &failures);
      const auto numbers = bootstrap.exchange(bootstrap.rank() * 3 + 1);
      for (int r = 0; numbers.ok() && r < ranks; ++r) {
        if (numbers.value()[static_cast<size_t>(r)] != r * 3 + 1) failures.add("exchange");
      }
      entered.fetch_add(1, std::memory_order_relaxed);
      if (!bootstrap.barrier().ok()) failures.add("barrier");
      if (entered.load(std::memory_order_relaxed) != ranks) failures.add("a rank left the barrier early");

      if (!bootstrap.agree({}).ok()) failures.add("agreement of successes");
      // Each rank in turn, then all but rank 0.
      for (int bad = 0; bad < ranks; ++bad) {
        const std::string text = fmt::format("no {}", bad);
        const bool mine = bootstrap.rank() == bad;
        const Status status = bootstrap.agree(mine ? Status(fcclInvalidArgument, text) : Status());
        const std::string wanted = mine ? text : fmt::format("rank {}: {}", bad, text);
        if (status.code() != fcclInvalidArgument || status.message() != wanted) failures.add(status.message());
      }
      const std::string endless(5'000, 'x');
      const Status status = bootstrap.agree(bootstrap.rank() == 0 ? Status() : Status(fcclSystemError, endless));
      if (ranks == 1 && !status.ok()) failures.add(status.message());
      if (ranks > 1 && status.code() != fcclSystemError) failures.add("lowest of several");
      if (ranks > 1 && bootstrap.rank() != 1 && status.message() != "rank 1: " + endless.substr(0, 1000)) {
        failures.add("not cut at 1000: " + status.message());
      }
      checkAllGather(bootstrap, 64, ++round, &failures);
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("256 ranks come up and gather") {
  const auto start = std::chrono::steady_clock::now();
  BootstrapGroup group = connectRanks(256, newId());
  REQUIRE(group.text() == "");
  UNSCOPED_INFO("connected after " << secondsSince(start) << " s");
  Failures failures;
  group.run("collectives", [&](Bootstrap& bootstrap) {
    checkAllGather(bootstrap, 40, 1, &failures);
    if (!bootstrap.agree({}).ok()) failures.add("agree");
  });
  CHECK(failures.text() == "0 failures");
  CHECK(secondsSince(start) < 20 * slowness());
}

TEST_CASE("two groups at once do not wait for each other") {
  const fcclUniqueId ids[2] = {newId(), newId()};
  Failures failures;
  std::atomic<int> firstDone{0};
  // The second group starts only when the first is through with everything.
  runThreads(8, "two groups", Seconds(30), [&](int thread) {
    const int half = thread / 4;
    while (half == 1 && firstDone.load(std::memory_order_relaxed) < 4) std::this_thread::sleep_for(milliseconds(1));
    auto result = Bootstrap::connect(ids[half], thread % 4, 4, bootstrapOptions());
    if (!result.ok()) return failures.add(result.status().message());
    for (int round = 0; round < 5; ++round) checkAllGather(*result.value(), 100, round + 10 * half, &failures);
    if (half == 0) firstDone.fetch_add(1, std::memory_order_relaxed);
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("ranks that start late are waited for") {
  const fcclUniqueId id = newId();
  for (const int late : {0, 2}) {
    const fcclUniqueId each = late == 0 ? id : newId();
    const BootstrapGroup group = connectWith(3, "late start", [&](int rank) {
      if (rank == late) std::this_thread::sleep_for(milliseconds(400));
      return Bootstrap::connect(each, rank, 3, bootstrapOptions());
    });
    CHECK(group.text() == "");
  }
}

TEST_CASE("strangers at rank 0's listener keep nobody up") {
  const fcclUniqueId id = newId();
  std::vector<Fd> strangers;
  for (int i = 0; i < 3; ++i) strangers.push_back(knock(id));  // silent
  strangers.push_back(knock(id));
  CHECK(sendAll(strangers.back(), "FHell", 5, Deadline(milliseconds(1'000))).ok());  // half a message
  strangers.push_back(knock(id));
  const std::string garbage(300, 'g');
  CHECK(sendAll(strangers.back(), garbage.data(), garbage.size(), Deadline(milliseconds(1'000))).ok());
  strangers.push_back(knock(id));
  strangers.back().reset();

  std::atomic<bool> turnedAway{false};
  const BootstrapGroup group = connectWith(4, "strangers", [&](int rank) {
    if (rank == 3) {
      // First with another secret, as a rank of another run would come; then rightly.
      Key128 secret = contentsOf(id).secret;
      secret[1] ^= 1;
      const auto wrong = RootConnection::open({addressesOf(id), false}, secret, Deadline(milliseconds(5'000)));
      turnedAway =
          wrong.status().code() == fcclInvalidUsage && contains(wrong.status().message(), "does not know the secret");
    }
    return Bootstrap::connect(id, rank, 4, bootstrapOptions());
  });
  CHECK(group.text() == "");
  CHECK(turnedAway);
}

TEST_CASE("a join without the secret is turned away") {
  const fcclUniqueId id = newId();
  std::atomic<bool> turnedAway{false};
  const BootstrapGroup group = connectWith(2, "forged join", [&](int rank) {
    if (rank == 1) {
      // The secret opens the door; the join is signed with another.
      auto connection =
          RootConnection::open({addressesOf(id), false}, contentsOf(id).secret, Deadline(milliseconds(5'000)));
      RankPlace place;
      place.rank = 1;
      place.ranks = 2;
      const Status status = connection.value().join(place, Deadline(milliseconds(5'000))).status();
      turnedAway = status.code() == fcclInvalidUsage && contains(status.message(), "secret is wrong");
    }
    return Bootstrap::connect(id, rank, 2, bootstrapOptions());
  });
  CHECK(group.text() == "");
  CHECK(turnedAway);
}

TEST_CASE("every rank that has arrived learns which are missing") {
  const fcclUniqueId id = newId();
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup group = connectWith(12, "missing", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    if (rank == 3 || rank >= 7) return Status(fcclInProgress, "does not come");
    // The least patient of them decides.
    return Bootstrap::connect(id, rank, 12, bootstrapOptions(milliseconds(rank == 5 ? 600 : 20'000)));
  });
  CHECK(secondsSince(start) < 3 * slowness());
  for (const int rank : {0, 1, 2, 4, 5, 6}) {
    const Status& status = group.statuses[static_cast<size_t>(rank)];
    CAPTURE(rank, status.message());
    CHECK(status.code() == fcclSystemError);
    CHECK(contains(status.message(), "ranks 3, 7-11 of 12 are missing after"));
  }
}

TEST_CASE("where rank 0 does not come the others say so") {
  const fcclUniqueId id = newId();
  const BootstrapGroup group = connectWith(3, "no root", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    if (rank == 0) return Status(fcclInProgress, "does not come");
    return Bootstrap::connect(id, rank, 3, bootstrapOptions(milliseconds(300)));
  });
  for (const size_t rank : {1u, 2u}) {
    CHECK(group.statuses[rank].code() == fcclSystemError);
    CHECK(contains(group.statuses[rank].message(), "rank 0 is missing"));
  }
  CHECK(Bootstrap::connect(id, 0, 1, bootstrapOptions()).ok());  // takes the listener out of the table
}

TEST_CASE("the same rank twice, and different numbers of ranks, fail on every rank at once") {
  const auto start = std::chrono::steady_clock::now();
  const fcclUniqueId first = newId();
  const BootstrapGroup twice = connectWith(4, "rank twice", [&](int rank) {
    return Bootstrap::connect(first, rank == 3 ? 2 : rank, 4, bootstrapOptions());
  });
  for (const Status& status : twice.statuses) {
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 2 came twice"));
  }
  const fcclUniqueId second = newId();
  const BootstrapGroup counts = connectWith(4, "counts differ", [&](int rank) {
    return Bootstrap::connect(second, rank, rank == 1 ? 8 : 4, bootstrapOptions());
  });
  for (const Status& status : counts.statuses) {
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 1 was started with 8 ranks, rank 0 with 4"));
  }
  CHECK(secondsSince(start) < 4 * slowness());
}

TEST_CASE("an id that has been used is refused on all ranks") {
  const fcclUniqueId id = newId();
  const BootstrapGroup first = connectRanks(4, id);
  REQUIRE(first.text() == "");
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup second = connectRanks(4, id);
  CHECK(secondsSince(start) < 2 * slowness());
  for (const Status& status : second.statuses) {
    CAPTURE(status.message());
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "id was already used"));
  }
}

TEST_CASE("an id that is used twice at the same time serves one group or none") {
  for (int round = 0; round < 20; ++round) {
    const fcclUniqueId id = newId();
    const auto start = std::chrono::steady_clock::now();
    const BootstrapGroup both = connectWith(
        8, "id twice", [&](int thread) { return Bootstrap::connect(id, thread % 4, 4, bootstrapOptions()); });
    CHECK(secondsSince(start) < 2 * slowness());
    int connected = 0;
    for (const Status& status : both.statuses) {
      connected += status.ok() ? 1 : 0;
      CAPTURE(both.text());
      if (!status.ok()) {
        CHECK(status.code() == fcclInvalidUsage);
        CHECK(contains(status.message(), "id was already used"));
      }
    }
    CAPTURE(both.text());
    CHECK((connected == 0 || connected == 4));
  }
}

TEST_CASE("rank 0 needs the id of its own process") {
  // As made elsewhere: an id whose listener this process does not have.
  const Result<Listener> elsewhere = listenOn(0);
  IdContents contents;
  contents.secret = randomKey().value();
  contents.root = makeEndpoint(elsewhere.value(), chooseInterface(listInterfaces().value(), "").value());
  const Status status = Bootstrap::connect(packId(contents), 0, 2, bootstrapOptions()).status();
  CHECK(status.code() == fcclInvalidUsage);
  CHECK(contains(status.message(), "made by another process"));
}

TEST_CASE("an unknown interface is an error that lists what exists") {
  BootstrapOptions unknown = bootstrapOptions(milliseconds(500));
  unknown.interface = "doesnotexist";
  fcclUniqueId id;
  CHECK(Bootstrap::createId(unknown, &id).code() == fcclInvalidArgument);
  id = newId();
  const BootstrapGroup group = connectWith(2, "unknown interface", [&](int rank) {
    return Bootstrap::connect(id, rank, 2, rank == 1 ? unknown : bootstrapOptions(milliseconds(500)));
  });
  CHECK(group.statuses[0].code() == fcclSystemError);
  CHECK(contains(group.statuses[0].message(), "rank 1 of 2 is missing"));
  CHECK(group.statuses[1].code() == fcclInvalidArgument);
  CHECK(contains(group.statuses[1].message(), "'doesnotexist' (FCCL_SOCKET_IFNAME"));
  CHECK(contains(group.statuses[1].message(), "lo ("));
}

TEST_CASE("a group forms over each interface that exists") {
  const auto interfaces = listInterfaces();
  REQUIRE(interfaces.ok());
  for (const NetworkInterface& interface : interfaces.value()) {
    BootstrapOptions options = bootstrapOptions();
    options.interface = interface.name;
    CAPTURE(interface.name);
    if (!interface.up || interface.addresses.empty()) {
      fcclUniqueId id;
      CHECK(Bootstrap::createId(options, &id).code() == fcclInvalidArgument);
      continue;
    }
    CHECK(connectRanks(3, newId(options), options).text() == "");
    // Its own addresses, without the short cut over loopback.
    const Result<Listener> listener = listenOn(0);
    Endpoint endpoint = makeEndpoint(listener.value(), interface);
    endpoint.host = 0;
    const std::vector<SocketAddress> addresses = candidates(endpoint, interface.index);
    CHECK(!addresses.empty());
    for (const SocketAddress& address : addresses) {
      CAPTURE(address.text());
      CHECK(connectTo({&address, 1}, Deadline(milliseconds(3'000)), false).ok());
    }
  }
}

TEST_CASE("a fixed address host:port takes the place of the id's") {
  BootstrapOptions options = bootstrapOptions();
  options.rendezvous = "127.0.0.1:" + freePort();
  // The id from rank 0's process, listening since then; and one from elsewhere, where rank 0 comes last.
  CHECK(connectRanks(3, newId(options), options).text() == "");
  IdContents contents;
  contents.secret = randomKey().value();
  const fcclUniqueId id = packId(contents);
  const BootstrapGroup late = connectWith(3, "late root", [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(milliseconds(300));
    return Bootstrap::connect(id, rank, 3, options);
  });
  CHECK(late.text() == "");

  // The port is taken.
  const Result<Listener> taken = listenOn(0);
  options.rendezvous = fmt::format("127.0.0.1:{}", taken.value().port);
  fcclUniqueId none;
  const Status status = Bootstrap::createId(options, &none);
  CHECK(status.code() == fcclSystemError);
  CHECK(contains(status.message(), options.rendezvous));
}

TEST_CASE("a listener of another run at the fixed address is waited out") {
  BootstrapOptions options = bootstrapOptions();
  options.rendezvous = "127.0.0.1:" + freePort();
  const fcclUniqueId oldId = newId(options);
  const fcclUniqueId fresh = packId({randomKey().value(), {}});
  const BootstrapGroup group = connectWith(3, "former run", [&](int rank) {
    if (rank == 2) {
      // The former run ends after a while: its rank 0 comes and finds nobody.
      BootstrapOptions former = options;
      former.timeout = milliseconds(300);
      return Bootstrap::connect(oldId, 0, 2, former);
    }
    if (rank == 0) std::this_thread::sleep_for(milliseconds(100));
    return Bootstrap::connect(fresh, rank, 2, options);
  });
  CAPTURE(group.text());
  CHECK(group.statuses[0].ok());
  CHECK(group.statuses[1].ok());
  CHECK(contains(group.statuses[2].message(), "rank 1 of 2 is missing"));
}

TEST_CASE("a group forms over IPv6 alone") {
  Result<Listener> probe = listenOn(0, AF_INET6);
  if (!probe.ok()) FCCL_SKIP("this machine has no IPv6: " + probe.status().message());
  const SocketAddress loopback = SocketAddress::ipv6(&in6addr_loopback, 0, probe.value().port);
  if (!connectTo({&loopback, 1}, Deadline(milliseconds(1'000)), false).ok()) FCCL_SKIP("::1 cannot be reached");
  BootstrapTestHooks hooks;
  hooks.family = AF_INET6;
  BootstrapOptions options = bootstrapOptions();
  options.hooks = &hooks;
  Failures failures;
  BootstrapGroup byId = connectRanks(4, newId(options), options);
  REQUIRE(byId.text() == "");
  byId.run("gather", [&](Bootstrap& bootstrap) { checkAllGather(bootstrap, 100, 1, &failures); });
  options.rendezvous = "[::1]:" + freePort();
  BootstrapGroup fixed = connectRanks(4, newId(options), options);
  REQUIRE(fixed.text() == "");
  fixed.run("gather", [&](Bootstrap& bootstrap) { checkAllGather(bootstrap, 100, 2, &failures); });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("a group forms over IPv4 alone") {
  BootstrapTestHooks hooks;
  hooks.family = AF_INET;
  BootstrapOptions options = bootstrapOptions();
  options.hooks = &hooks;
  CHECK(connectRanks(4, newId(options), options).text() == "");
}

TEST_CASE("a rank that goes away is named on every other rank") {
  for (const int gone : {0, 3}) {
    BootstrapGroup group = connectRanks(6, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    const auto start = std::chrono::steady_clock::now();
    group.members[static_cast<size_t>(gone)].reset();
    group.run("a rank is gone", [&](Bootstrap& bootstrap) {
      for (int attempt = 0; attempt < 2; ++attempt) {
        const Status status = bootstrap.barrier();
        if (status.code() != fcclRemoteError || !contains(status.message(), fmt::format("rank {} closed", gone))) {
          failures.add(
              fmt::format("rank {}: ({}) {}", bootstrap.rank(), static_cast<int>(status.code()), status.message()));
        }
      }
    });
    CHECK(failures.text() == "0 failures");
    CHECK(secondsSince(start) < 2 * slowness());
  }
}

TEST_CASE("a rank may leave as soon as it has everything") {
  for (int round = 0; round < 30; ++round) {
    BootstrapGroup group = connectRanks(5, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    group.run("leave early", [&](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      if (rank == round % 5) std::this_thread::sleep_for(milliseconds(5));
      checkAllGather(bootstrap, 20'000, round, &failures);
      group.members[static_cast<size_t>(rank)].reset();
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("a rank that does not call is named at the time limit") {
  BootstrapGroup group = connectRanks(5, newId(), bootstrapOptions(milliseconds(1'000)));
  REQUIRE(group.text() == "");
  Failures failures;
  group.run("rank 2 is late", [&](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 2) std::this_thread::sleep_for(Seconds(1.5) * slowness());
    Status status = bootstrap.barrier();
    // The late one may find all blocks of that barrier waiting for it; it hears of the failure in the next.
    if (bootstrap.rank() == 2 && status.ok()) status = bootstrap.barrier();
    if (status.code() != fcclRemoteError || !contains(status.message(), "rank 2 has not arrived within")) {
      failures.add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
    }
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("calls that do not fit are an error on every rank") {
  BootstrapGroup group = connectRanks(4, newId());
  REQUIRE(group.text() == "");
  Failures failures;
  group.run("misfit", [&](Bootstrap& bootstrap) {
    std::vector<char> all(4 * 200'000);
    const Status status = bootstrap.allGather(all.data(), bootstrap.rank() == 2 ? 200'000 : 100'000);
    if (status.code() != fcclInvalidUsage || !contains(status.message(), "of 200000 bytes") ||
        !contains(status.message(), "of 100000 bytes")) {
      failures.add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
    }
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("a rank that leaves after an error has told the others why") {
  for (const int ranks : {2, 5}) {
    BootstrapGroup group = connectRanks(ranks, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    group.run("misfit, then leave", [&](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      std::vector<char> all(static_cast<size_t>(ranks) * 100'000);
      const Status status = rank == 1 ? bootstrap.barrier() : bootstrap.allGather(all.data(), 100'000);
      if (status.code() != fcclInvalidUsage || !contains(status.message(), "in barrier number")) {
        failures.add(fmt::format("rank {}: {}", rank, status.message()));
      }
      group.members[static_cast<size_t>(rank)].reset();
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("abort wakes a call that is under way and tells the others") {
  BootstrapGroup group = connectRanks(4, newId());
  REQUIRE(group.text() == "");
  Failures failures;
  const auto start = std::chrono::steady_clock::now();
  runThreads(4, "abort", Seconds(20), [&](int rank) {
    Bootstrap& bootstrap = *group.members[static_cast<size_t>(rank)];
    if (rank == 3) {  // does not call; aborts rank 1 from here, twice
      std::this_thread::sleep_for(milliseconds(200));
      group.members[1]->abort();
      group.members[1]->abort();
      return;
    }
    const Status status = bootstrap.barrier();
    const bool own = rank == 1;
    if (status.code() != (own ? fcclInvalidUsage : fcclRemoteError)) failures.add(status.message());
    if (!contains(status.message(), own ? "aborted" : "rank 1 closed")) failures.add(status.message());
    if (own && bootstrap.agree({}).code() != fcclInvalidUsage) failures.add("a later call succeeds");
  });
  CHECK(failures.text() == "0 failures");
  CHECK(secondsSince(start) < 2 * slowness());
  auto alone = Bootstrap::connect(newId(), 0, 1, bootstrapOptions());
  REQUIRE(alone.ok());
  CHECK(alone.value()->barrier().ok());
  alone.value()->abort();
  CHECK(alone.value()->barrier().code() == fcclInvalidUsage);
}

TEST_CASE("a rank that dies while the group forms leaves nobody waiting") {
  struct Death {};
  for (const BootstrapStep step :
       {BootstrapStep::kRingConnect, BootstrapStep::kRingAccept, BootstrapStep::kRingCheck}) {
    for (const int dead : {0, 2}) {
      BootstrapTestHooks hooks;
      hooks.before = [&](int rank, BootstrapStep at) {
        if (rank == dead && at == step) throw Death();  // all it holds is closed, as by its process's end
      };
      BootstrapOptions options = bootstrapOptions();
      options.hooks = &hooks;
      const fcclUniqueId id = newId();
      const auto start = std::chrono::steady_clock::now();
      const BootstrapGroup group = connectWith(4, "death", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
        try {
          return Bootstrap::connect(id, rank, 4, options);
        } catch (const Death&) {
          return Status(fcclInProgress, "died");
        }
      });
      CAPTURE(static_cast<int>(step), dead, group.text());
      CHECK(secondsSince(start) < 3 * slowness());
      for (int rank = 0; rank < 4; ++rank) {
        CHECK(group.statuses[static_cast<size_t>(rank)].code() == (rank == dead ? fcclInProgress : fcclRemoteError));
      }
    }
  }
}

TEST_CASE("a forked process may be rank 0 of an id made before the fork") {
  const fcclUniqueId id = newId();
  CHECK(inChild([&] { return connectRank(id, 0, 2); }, [&] { return connectRank(id, 1, 2); }) == std::pair(0, 0));
  // The id is spent, though this process still has a descriptor of the listener.
  const Status status = Bootstrap::connect(id, 1, 2, bootstrapOptions()).status();
  CHECK(status.code() == fcclInvalidUsage);
  CHECK(contains(status.message(), "already used"));
}

TEST_CASE("a network namespace with only loopback, and one with a dead interface first") {
  // 0: as it should be; kNoNamespace: this machine does not let us try.
  const auto lonely = [] {
    if (!enterNetworkNamespace() || !loopbackUp()) return kNoNamespace;
    return connectRanks(3, newId()).allOk() ? 0 : 1;
  };
  const auto loopbackDown = [] {
    if (!enterNetworkNamespace()) return kNoNamespace;
    fcclUniqueId id;
    const Status status = Bootstrap::createId(bootstrapOptions(), &id);
    return status.code() == fcclSystemError && contains(status.message(), "there are: lo (down)") ? 0 : 1;
  };
  const auto deadInterface = [] {
    if (!enterNetworkNamespace() || !loopbackUp()) return kNoNamespace;
    const int made = std::system(
        "(ip link add veth0 type veth peer name veth1 && ip addr add 198.51.100.1/24 dev veth0 && ip link set veth0 "
        "up) "
        "> /dev/null 2>&1");
    if (made != 0) return kNoNamespace;
    return connectRanks(3, newId()).allOk() ? 0 : 1;
  };
  const int results[] = {inChild(lonely).first, inChild(loopbackDown).first, inChild(deadInterface).first};
  CHECK((results[0] == 0 || results[0] == kNoNamespace));
  CHECK((results[1] == 0 || results[1] == kNoNamespace));
  CHECK((results[2] == 0 || results[2] == kNoNamespace));
  if (results[0] == kNoNamespace) FCCL_SKIP("no network namespace can be made here");
  if (results[2] == kNoNamespace) FCCL_SKIP("no veth interface can be made here");
}

TEST_CASE("no descriptor is left behind") {
  connectRanks(4, newId());
  const size_t before = openDescriptors();
  for (int round = 0; round < 5; ++round) {
    CHECK(connectRanks(4, newId()).text() == "");
    const fcclUniqueId twice = newId();
    connectWith(3, "fails",
                [&](int rank) { return Bootstrap::connect(twice, rank == 2 ? 1 : rank, 3, bootstrapOptions()); });
    const fcclUniqueId missing = newId();
    connectWith(2, "fails",
                [&](int rank) { return Bootstrap::connect(missing, rank, 3, bootstrapOptions(milliseconds(50))); });
  }
  CHECK(openDescriptors() == before);
}
