#include "transport/nccl_bootstrap.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fccl {
namespace {

// Fixed size, no pointers: it travels as bytes.
struct Offer {
  int32_t code = fcclSuccess;
  char sentence[380] = {};
  fcclUniqueId id{};
};

}  // namespace

Result<fcclUniqueId> agreeOnId(int rank, int ranks, const Status& mine, const BootstrapOptions& options,
                               const HostGather& gather) {
  Offer own;
  Status failed = mine;
  if (failed.ok() && rank == 0) failed = Bootstrap::createId(options, &own.id);
  own.code = failed.code();
  failed.message().copy(own.sentence, sizeof own.sentence - 1);

  std::vector<Offer> all(static_cast<size_t>(ranks));
  FCCL_TRY(gather(&own, all.data(), sizeof own));
  const auto bad = std::find_if(all.begin(), all.end(), [](const Offer& offer) { return offer.code != fcclSuccess; });
  if (bad == all.end()) return all.front().id;
  const auto who = bad - all.begin();
  if (who == rank) return failed;
  return failure(static_cast<fcclResult_t>(bad->code), "rank {}: {}", who, bad->sentence);
}

}  // namespace fccl
