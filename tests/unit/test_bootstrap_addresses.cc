// Where the ranks of a group find each other: addresses, interfaces, a fixed host:port, network namespaces.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"
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

// What `body` returns in a forked process.
int inChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
  const int results[] = {inChild(lonely), inChild(loopbackDown), inChild(deadInterface)};
  CHECK((results[0] == 0 || results[0] == kNoNamespace));
  CHECK((results[1] == 0 || results[1] == kNoNamespace));
  CHECK((results[2] == 0 || results[2] == kNoNamespace));
  if (results[0] == kNoNamespace) FCCL_SKIP("no network namespace can be made here");
  if (results[2] == kNoNamespace) FCCL_SKIP("no veth interface can be made here");
}
