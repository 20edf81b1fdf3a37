#include "transport/path_check.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fccl {
namespace {

constexpr size_t kMostPerPair = size_t{64} << 10;
constexpr size_t kMostPerRank = size_t{1} << 20;  // with many ranks a pair has less

// The word `i` of what `writer` writes for `reader`: never zero, and other for each pair and place.
uint64_t wordOf(int writer, int reader, size_t i) {
  const uint64_t pair = (static_cast<uint64_t>(writer) << 32 | static_cast<uint64_t>(reader)) + 1;
  return (pair * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u) | 1;
}

void fill(char* at, size_t words, int writer, int reader) {
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = wordOf(writer, reader, i);
    std::memcpy(at + 8 * i, &word, 8);
  }
}

// The first word that differs, or `words`.
size_t firstDifference(const char* at, size_t words, int writer, int reader) {
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, at + 8 * i, 8);
    if (word != wordOf(writer, reader, i)) return i;
  }
  return words;
}

Status damaged(int writer, int reader, size_t word, const char* seenBy, const SymmetricMemory& memory) {
  return failure(
      fcclSystemError,
      "what rank {} writes into the memory of rank {} is not there (byte {}, seen by {}); shared memory ({}) "
      "does not work between these two: run them on one machine, or try another FCCL_SHARED_MEMORY",
      writer, reader, 8 * word, seenBy, memory.kind());
}

}  // namespace

Status checkPaths(Bootstrap& bootstrap, const SymmetricMemory& memory) {
  const int ranks = bootstrap.ranks();
  const int self = bootstrap.rank();
  const size_t words =
      std::min({kMostPerPair, kMostPerRank / static_cast<size_t>(ranks), memory.bytes() / static_cast<size_t>(ranks)}) /
      8;
  const auto blockOf = [&](int writer, int reader) {
    return memory.peer(reader) + static_cast<size_t>(writer) * words * 8;
  };
  for (int r = 0; r < ranks; ++r) {
    if (r != self) fill(blockOf(self, r), words, self, r);
  }
  // Whoever returns from a barrier sees what all ranks wrote before it: messages go from each rank to each other.
  FCCL_TRY(bootstrap.barrier());
  Status mine;
  for (int r = 0; r < ranks && mine.ok(); ++r) {
    if (r == self) continue;
    const size_t written = firstDifference(blockOf(self, r), words, self, r);
    if (written < words) mine = damaged(self, r, written, "the writer", memory);
    const size_t arrived = firstDifference(blockOf(r, self), words, r, self);
    if (arrived < words) mine = damaged(r, self, arrived, "the reader", memory);
  }
  FCCL_TRY(bootstrap.agree(mine));
  std::memset(memory.peer(self), 0, static_cast<size_t>(ranks) * words * 8);
  return {};
}

}  // namespace fccl
