// What stands behind an fcclComm_t: one rank of one group.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "kernels/host/world.h"
#include "lib/config.h"
#include "lib/errors.h"
#include "lib/plan_cache.h"
#include "lib/validate.h"
#include "lib/window_table.h"
#include "transport/bootstrap.h"
#include "transport/symmetric_memory.h"

namespace fccl {

class Communicator {
 public:
  // Collective over `ranks` ranks; see creation.cc for the steps.
  static Result<std::unique_ptr<Communicator>> create(const fcclUniqueId& id, int rank, int ranks,
                                                      const Options& options);

  int rank() const { return world_.rank; }
  int ranks() const { return world_.ranks; }
  const Options& options() const { return options_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  WindowTable& windows() { return windows_; }
  host::World& world() { return world_; }
  const Facts& facts() const { return facts_; }

  // Carries the call out. One thread at a time.
  Status run(CheckedCall& call);

  // Success while collectives may be issued; else why not.
  Status usable() const;
  // fcclInvalidUsage for every later collective.
  void finalize();
  // From any thread: makes this rank's waits end, and those of peers for this rank.
  void abort();
  // Success, or the failure that has ended the use of the communicator. From any thread.
  Status failed() const;

  LastError& lastError() { return lastError_; }

 private:
  enum State : int { kUsable, kFinalized, kFailed };

  Communicator(int rank, int ranks, const Options& options);

  // The steps of create().
  Status meet(const fcclUniqueId& id);
  Status share();
  Status look();

  // The query of the call, with the windows that its buffers lie in entered into the call.
  Query queryOf(CheckedCall& call) const;
  Result<const Plan*> makePlan(const PlanKey& key, const Query& query, fcclStrategy_t strategy);
  Status compareCalls(const CheckedCall& call);
  host::CallSignature signature(const CheckedCall& call) const;
  // True, with world_.failure set, where this rank or a peer has aborted or given up: no call that begins now can end
  // well, even if all that it waits for is already there.
  bool someoneHasEnded();
  // Ends the use of the communicator with what world_.failure says.
  Status fail(const CheckedCall& call);

  Options options_;
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<SymmetricMemory> memory_;
  host::World world_;
  Facts facts_;
  uint32_t firstCall_ = 0;
  PlanCache plans_;
  WindowTable windows_;

  std::atomic<int> state_{kUsable};
  LastError failure_;
  LastError lastError_;
};

}  // namespace fccl
