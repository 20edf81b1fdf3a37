// The network interfaces of this machine, and which of them a rank gives to the others.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/socket.h"

namespace fccl {

struct NetworkInterface {
  std::string name;
  unsigned index = 0;
  bool up = false;       // switched on
  bool running = false;  // and has a carrier
  bool loopback = false;
  std::vector<SocketAddress> addresses;  // IPv4 and IPv6, best first: global before link-local

  // The first of that family, or no address.
  SocketAddress address(int family) const;
};

Result<std::vector<NetworkInterface>> listInterfaces();

// `wanted` as FCCL_SOCKET_IFNAME: "eth0,ib" are names or prefixes of names, the first that fits wins, an exact name
// before a prefix; "^docker,veth" takes any but those. Empty: any. Where it leaves a choice: the interface that has the
// address `preferred`, else one with a carrier that is not a bridge or tunnel of containers, else any that is up,
// loopback last. fcclInvalidArgument names the interfaces that exist.
Result<NetworkInterface> chooseInterface(const std::vector<NetworkInterface>& interfaces, const std::string& wanted,
                                         const SocketAddress& preferred = {});

}  // namespace fccl
