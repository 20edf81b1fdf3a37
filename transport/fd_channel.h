// Passes file descriptors between the processes of a group.
#pragma once

#include <span>
#include <vector>

#include "transport/bootstrap.h"
#include "transport/process_map.h"
#include "transport/shared_file.h"

namespace fccl {

// Descriptors that one rank may offer.
constexpr size_t kMaxOffers = 2;

// got[r]: what rank r offered, in its order. Filled on the leader of each process, for ranks of other processes.
using PassedDescriptors = std::vector<std::vector<Fd>>;

// Collective; the group has more than one process. Every rank offers `mine` (open until this returns).
//
// First way: over stream sockets to rank 0, which sends everyone what the others have. Its address is an abstract name
// (nothing in the file system), random and told only over the bootstrap, with a secret that both sides check; a
// stranger who connects is turned away and holds nobody up. Members send before rank 0 looks, so it waits for none of
// them, and they wait for it no longer than the time limit. Abstract names end at a network namespace, so if any rank
// cannot connect, all take the second way: each opens the descriptors of the other processes through /proc, after
// comparing the file's identity. The verdict is the same on all ranks and says why each way failed.
Verdict passDescriptors(Bootstrap& bootstrap, const ProcessMap& processes, std::span<const int> mine,
                        const Deadline& deadline, PassedDescriptors* got);

}  // namespace fccl
