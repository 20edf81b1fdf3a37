// Where a listener can be reached, in the form in which ranks tell each other, and the unique id that carries one.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/interfaces.h"
#include "transport/siphash.h"
#include "transport/socket.h"

namespace fccl {

struct WireAddress {
  uint32_t family = 0;  // 4, 6, or 0: none
  uint32_t scope = 0;
  std::array<uint8_t, 16> bytes{};
};

struct Endpoint {
  uint64_t host = 0;  // hostIdentity() of the listener's process
  uint16_t port = 0;
  uint8_t ipv4 = 0;  // the listener takes IPv4
  uint8_t ipv6 = 0;
  uint32_t preferredFamily = 0;  // 4 or 6, tried first
  std::array<WireAddress, 2> addresses{};
};

// Equal for two processes exactly if they share a loopback interface: a hash of boot and network namespace; 0: unknown.
uint64_t hostIdentity();

Endpoint makeEndpoint(const Listener& listener, const NetworkInterface& interface, int preferredFamily = AF_INET);

// What to connect to, best first: loopback where the listener is in the same place, which works with no network at all.
// A link-local address of another machine is reached through the own interface `ownInterface`.
std::vector<SocketAddress> candidates(const Endpoint& endpoint, unsigned ownInterface);

Result<Key128> randomKey();

// What the 128 bytes of an id hold.
struct IdContents {
  Key128 secret{};
  Endpoint root;
};

fcclUniqueId packId(const IdContents& contents);
// fcclInvalidArgument unless packId() of this version has made the id.
Result<IdContents> unpackId(const fcclUniqueId& id);

}  // namespace fccl
