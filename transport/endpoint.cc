#include "transport/endpoint.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace fccl {

uint64_t hostIdentity() {
  struct {
    char boot[40];
    uint64_t device;
    uint64_t node;
  } seen{};
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  struct stat space {};
  if (!file.valid() || ::read(file.get(), seen.boot, sizeof seen.boot) < 36) return 0;
  if (::stat("/proc/self/ns/net", &space) < 0) return 0;
  seen.device = space.st_dev;
  seen.node = space.st_ino;
  return sipHash24({}, &seen, sizeof seen);
}

Endpoint makeEndpoint(const Listener& listener, const NetworkInterface& interface, int preferredFamily) {
  Endpoint endpoint;
  endpoint.host = hostIdentity();
  endpoint.port = listener.port;
  endpoint.ipv4 = listener.ipv4;
  endpoint.ipv6 = listener.ipv6;
  endpoint.preferredFamily = preferredFamily == AF_INET6 ? 6 : 4;
  const SocketAddress ipv4 = listener.ipv4 ? interface.address(AF_INET) : SocketAddress();
  const SocketAddress ipv6 = listener.ipv6 ? interface.address(AF_INET6) : SocketAddress();
  if (ipv4.family() == AF_INET) {
    endpoint.addresses[0].family = 4;
    std::memcpy(endpoint.addresses[0].bytes.data(), ipv4.addressBytes(), 4);
  }
  if (ipv6.family() == AF_INET6) {
    endpoint.addresses[1].family = 6;
    endpoint.addresses[1].scope = ipv6.scope();
    std::memcpy(endpoint.addresses[1].bytes.data(), ipv6.addressBytes(), 16);
  }
  return endpoint;
}

std::vector<SocketAddress> candidates(const Endpoint& endpoint, unsigned ownInterface) {
  const uint64_t host = hostIdentity();
  const bool samePlace = host != 0 && host == endpoint.host;
  const uint32_t loopback = htonl(INADDR_LOOPBACK);
  std::vector<SocketAddress> result;
  if (samePlace && endpoint.ipv4 != 0) result.push_back(SocketAddress::ipv4(&loopback, endpoint.port));
  if (samePlace && endpoint.ipv6 != 0) result.push_back(SocketAddress::ipv6(&in6addr_loopback, 0, endpoint.port));
  const size_t local = result.size();
  for (const WireAddress& address : endpoint.addresses) {
    if (address.family == 4) result.push_back(SocketAddress::ipv4(address.bytes.data(), endpoint.port));
    // The number of an interface means something on its own machine only.
    const uint32_t scope = address.scope == 0 || samePlace ? address.scope : ownInterface;
    if (address.family == 6) result.push_back(SocketAddress::ipv6(address.bytes.data(), scope, endpoint.port));
  }
  const auto preferred = [&](const SocketAddress& address) {
    return address.family() == (endpoint.preferredFamily == 6 ? AF_INET6 : AF_INET);
  };
  const auto middle = result.begin() + static_cast<ptrdiff_t>(local);
  std::stable_partition(result.begin(), middle, preferred);
  std::stable_partition(middle, result.end(), preferred);
  return result;
}

Result<Key128> randomKey() {
  Key128 key{};
  // Up to 256 bytes come at once, uninterrupted, as soon as the kernel's generator is seeded.
  FCCL_SYS(::getrandom(key.data(), sizeof key, 0));
  return key;
}

namespace {

constexpr std::array<char, 6> kMagic = {'F', 'C', 'C', 'L', 'i', 'd'};
constexpr uint16_t kVersion = 1;

struct PackedId {
  std::array<char, 6> magic = kMagic;
  uint16_t version = kVersion;
  IdContents contents;
  uint64_t checksum = 0;  // of all before; finds ids that were cut at a zero byte or damaged on their way
};
static_assert(sizeof(PackedId) <= FCCL_UNIQUE_ID_BYTES && std::has_unique_object_representations_v<PackedId>);

uint64_t checksum(const PackedId& packed) { return sipHash24({}, &packed, offsetof(PackedId, checksum)); }

}  // namespace

fcclUniqueId packId(const IdContents& contents) {
  PackedId packed;
  packed.contents = contents;
  packed.checksum = checksum(packed);
  fcclUniqueId id{};
  std::memcpy(id.internal, &packed, sizeof packed);
  return id;
}

Result<IdContents> unpackId(const fcclUniqueId& id) {
  PackedId packed;
  std::memcpy(static_cast<void*>(&packed), id.internal, sizeof packed);
  if (packed.magic != kMagic) {
    return failure(
        fcclInvalidArgument,
        "id is not a unique id: it does not begin as one. Pass the {} bytes that fcclGetUniqueId gave to rank "
        "0, on every rank",
        FCCL_UNIQUE_ID_BYTES);
  }
  if (packed.version != kVersion) {
    return failure(fcclInvalidArgument,
                   "id is of version {}, this library reads version {}: all ranks must use the same version of FCCL",
                   packed.version, kVersion);
  }
  if (packed.checksum != checksum(packed)) {
    return failure(
        fcclInvalidArgument,
        "id is damaged: its checksum does not fit. Pass all {} bytes that fcclGetUniqueId gave, as bytes and "
        "not as text",
        FCCL_UNIQUE_ID_BYTES);
  }
  return packed.contents;
}

}  // namespace fccl
