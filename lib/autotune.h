// FCCL_AUTOTUNE: what AUTO does not know is measured when a call of its kind and size comes for the first time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "lib/validate.h"
#include "tuner/registry.h"
#include "tuner/tuning_table.h"

namespace fccl {

class Communicator;

// Of one communicator, for the thread that is inside.
//
// The ranks measure only when all of them have come to it. Whoever waits gives up after kPatience, for good and for all
// ranks: a call that returns by itself (CUDA) may be one whose peers the same thread calls afterwards, or whose peers
// capture theirs, and must not stand still where it would not have without tuning.
class Autotune {
 public:
  static constexpr std::chrono::milliseconds kPatience{2000};

  // `asked`: of the environment. Without it calls on CUDA are measured where nothing is known but the model.
  Autotune(std::optional<bool> asked, const Facts& facts);

  // False: it wants nothing any more.
  bool active() const { return active_; }
  // Whether this call, which has no plan yet, comes first of its bucket, and AUTO decides it.
  bool wants(Communicator& communicator, const CheckedCall& call, const Query& query);
  // Where wants() is true, before the call is planned. Collective, as far as the others come to it too. Success where
  // there is no result as well: AUTO decides as it would have.
  Status measure(Communicator& communicator, const CheckedCall& call, const Query& query);

 private:
  using Bucket = std::pair<TuningSeries, int64_t>;

  static Bucket bucketOf(const Query& query);
  void stop(const char* why);

  const bool always_;
  bool active_;
  bool toldOfCapture_ = false;
  std::set<Bucket> tried_;
};

}  // namespace fccl
