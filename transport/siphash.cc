#include "transport/siphash.h"

#include <bit>
#include <cstring>

namespace fccl {

static_assert(std::endian::native == std::endian::little, "SipHash reads its words in little-endian order");

uint64_t sipHash24(const Key128& key, const void* data, size_t bytes) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575u;
  uint64_t v1 = key[1] ^ 0x646f72616e646f6du;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261u;
  uint64_t v3 = key[1] ^ 0x7465646279746573u;
  const auto rounds = [&](int count) {
    for (; count > 0; --count) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto absorb = [&](uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };

  const char* in = static_cast<const char*>(data);
  size_t left = bytes;
  for (; left >= 8; left -= 8, in += 8) {
    uint64_t word = 0;
    std::memcpy(&word, in, 8);
    absorb(word);
  }
  uint64_t last = 0;
  if (left > 0) std::memcpy(&last, in, left);
  absorb(last | static_cast<uint64_t>(bytes) << 56);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace fccl
