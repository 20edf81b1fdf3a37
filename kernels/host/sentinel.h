// Lamport wire: the word that means "not arrived". Compared as an integer at the width of a word, whatever the data
// type: as a float it would equal +0, and under flush-to-zero every negative subnormal.
#pragma once

#include <cstdint>

namespace fccl::host {

inline constexpr uint32_t kSentinel = 0x80000000u;

}  // namespace fccl::host
