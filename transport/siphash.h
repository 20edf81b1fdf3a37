// SipHash-2-4: a keyed hash of 64 bits (Aumasson, Bernstein, 2012). Ranks prove with it that they know an id's secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fccl {

// 128 random bits: the secret of an id, or a number used once.
using Key128 = std::array<uint64_t, 2>;

uint64_t sipHash24(const Key128& key, const void* data, size_t bytes);

}  // namespace fccl
