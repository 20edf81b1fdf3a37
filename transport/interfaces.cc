#include "transport/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "base/check.h"

namespace fccl {

SocketAddress NetworkInterface::address(int family) const {
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const SocketAddress& address) { return address.family() == family; });
  return found == addresses.end() ? SocketAddress() : *found;
}

Result<std::vector<NetworkInterface>> listInterfaces() {
  ifaddrs* first = nullptr;
  FCCL_SYS(getifaddrs(&first));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(first, freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const NetworkInterface& interface) { return interface.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      NetworkInterface added;
      added.name = entry->ifa_name;
      added.index = if_nametoindex(entry->ifa_name);
      added.up = (entry->ifa_flags & IFF_UP) != 0;
      added.running = (entry->ifa_flags & IFF_RUNNING) != 0;
      added.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      found = interfaces.insert(interfaces.end(), std::move(added));
    }
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET) found->addresses.emplace_back(entry->ifa_addr, sizeof(sockaddr_in));
    if (family == AF_INET6) found->addresses.emplace_back(entry->ifa_addr, sizeof(sockaddr_in6));
  }
  for (NetworkInterface& interface : interfaces) {
    std::stable_sort(interface.addresses.begin(), interface.addresses.end(),
                     [](const SocketAddress& a, const SocketAddress& b) { return a.isLinkLocal() < b.isLinkLocal(); });
  }
  return interfaces;
}

namespace {

bool usable(const NetworkInterface& interface) { return interface.up && !interface.addresses.empty(); }

// What container runtimes and virtual machines make: their addresses mean nothing on another machine.
bool virtualName(std::string_view name) {
  constexpr std::array<std::string_view, 11> kPrefixes = {"docker", "veth",   "virbr", "br-",   "cni", "flannel",
                                                          "cali",   "podman", "lxc",   "vmnet", "vbox"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Lower is better.
int disadvantage(const NetworkInterface& interface, const SocketAddress& preferred) {
  const auto& addresses = interface.addresses;
  if (std::any_of(addresses.begin(), addresses.end(),
                  [&](const SocketAddress& address) { return address.sameAddress(preferred); })) {
    return 0;
  }
  if (interface.loopback) return 5;
  return 1 + (interface.running ? 0 : 2) + (virtualName(interface.name) ? 1 : 0);
}

std::string describe(const std::vector<NetworkInterface>& interfaces) {
  std::string text;
  for (const NetworkInterface& interface : interfaces) {
    std::string addresses = interface.up ? "" : "down";
    for (const SocketAddress& address : interface.addresses) {
      addresses += fmt::format("{}{}", addresses.empty() ? "" : ", ", address.text(false));
    }
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", interface.name,
                        addresses.empty() ? "no address" : addresses);
  }
  return text.empty() ? "none" : text;
}

std::vector<std::string> splitNames(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    if (comma != 0) names.emplace_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return names;
}

}  // namespace

Result<NetworkInterface> chooseInterface(const std::vector<NetworkInterface>& interfaces, const std::string& wanted,
                                         const SocketAddress& preferred) {
  const bool exclude = wanted.starts_with('^');
  const std::vector<std::string> names = splitNames(std::string_view(wanted).substr(exclude ? 1 : 0));
  if (!wanted.empty() && names.empty()) {
    return failure(fcclInvalidArgument, "FCCL_SOCKET_IFNAME '{}' names no interface; there are: {}", wanted,
                   describe(interfaces));
  }
  // How well an interface fits: smaller is better, none is -1.
  const auto fit = [&](const NetworkInterface& interface) -> int {
    if (!usable(interface)) return -1;
    if (names.empty()) return 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!interface.name.starts_with(names[i])) continue;
      if (exclude) return -1;
      return static_cast<int>(2 * i) + (interface.name == names[i] ? 0 : 1);
    }
    return exclude ? 0 : -1;
  };
  const NetworkInterface* best = nullptr;
  for (const NetworkInterface& interface : interfaces) {
    const int own = fit(interface);
    if (own < 0) continue;
    if (best == nullptr ||
        std::pair(own, disadvantage(interface, preferred)) < std::pair(fit(*best), disadvantage(*best, preferred))) {
      best = &interface;
    }
  }
  if (best != nullptr) return *best;
  if (wanted.empty()) {
    return failure(fcclSystemError, "no network interface is up and has an address; there are: {}",
                   describe(interfaces));
  }
  return failure(fcclInvalidArgument, "the network interface '{}' (FCCL_SOCKET_IFNAME, netName) {}; there are: {}",
                 wanted,
                 exclude ? "excludes every interface that is up and has an address"
                         : "fits no interface that is up and has an address",
                 describe(interfaces));
}

}  // namespace fccl
