// How a call is cut into chunks that fit a slot. The arithmetic only; which size is wanted is the strategy's choice.
#pragma once

#include "tuner/registry.h"

namespace fccl {

// Columns are cut at multiples of this many elements, and rows stand in a slot at multiples of this many bytes.
constexpr int64_t kCutUnit = 64;

// Payload of the whole call: rows * cols * element size.
size_t payloadBytes(const Query& query);

// Bytes from one row to the next in a slot.
size_t slotRowStride(const Query& query);

// Scratch for a row between its two passes: whole registers are stored, so it is longer than the row.
size_t rowScratchBytes(const Query& query);

// Every rank takes every chunk. A norm is cut between rows, as many as `wantedBytes` holds, at least one; a row that
// exceeds the slot is cut by columns. A call without norm is one row, cut at `wantedBytes`. Chunks of columns are equal
// but for the last one.
host::Shape cutForAll(const Query& query, size_t slotBytes, size_t wantedBytes);

// Every chunk is shared out among all ranks as owners. rowsPerChunk is an owner's share; colsPerChunk is the chunk of
// all owners. A staging slot (kFlags) holds the shares of all owners, and, the second time, an owner's outputs for its
// share; a Lamport slot, of which there is one per sender, holds one share, and then its sums. colsPerChunk is 0 where
// the slot is too small for that, or a norm has fewer rows than there are owners and a residual that all have, a call
// without norm fewer than kCutUnit columns per owner.
host::Shape cutForOwners(const Query& query, const Facts& facts, host::Wire wire, size_t wantedBytes);

// The same for LOWPRECISION: a staging slot holds the shares of all owners, the second time one share.
host::Shape cutForOwnersInFp8(const Query& query, const Facts& facts, size_t wantedBytes);

}  // namespace fccl
