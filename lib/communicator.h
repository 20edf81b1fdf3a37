// What stands behind an fcclComm_t: one rank of one group.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/status.h"
#include "kernels/host/world.h"
#include "lib/autotune.h"
#include "lib/config.h"
#include "lib/engine.h"
#include "lib/errors.h"
#include "lib/plan_cache.h"
#include "lib/rank_record.h"
#include "lib/validate.h"
#include "lib/watcher.h"
#include "lib/window_table.h"
#include "transport/bootstrap.h"
#include "transport/topology.h"
#include "tuner/tuning_file.h"

namespace fccl {

class Communicator {
 public:
  ~Communicator();
  // Collective over `ranks` ranks; see creation.cc for the steps.
  static Result<std::unique_ptr<Communicator>> create(const fcclUniqueId& id, int rank, int ranks,
                                                      const Options& options);

  int rank() const { return world_.rank; }
  int ranks() const { return world_.ranks; }
  const Options& options() const { return options_; }
  fcclDeviceType_t deviceType() const { return options_.deviceType; }
  Caller caller() const { return {deviceType(), rank(), ranks()}; }
  int device() const { return engine_->device(); }
  // As Engine's; a rank that does not come ends the communicator, as in a call.
  Result<double> flagNanoseconds();
  // Whether this call returns only when other ranks have called theirs. NCCL's may: its first one with a shape may
  // connect ranks. For the thread that is inside.
  bool waits(CheckedCall& call);
  Bootstrap& bootstrap() { return *bootstrap_; }
  WindowTable& windows() { return windows_; }
  host::World& world() { return world_; }
  Engine& engine() { return *engine_; }
  // For the thread that is inside; a copy for any thread.
  const Facts& facts() const { return facts_; }
  Facts factsForAnyThread() const;
  // As the file says, or as detected when this is first called.
  const Topology& topology();

  // Collective: a window of all ranks' buffers, until closeWindow(), which is local. See Engine::mapWindow.
  Result<fcclWindow_t> openWindow(void* buffer, size_t bytes);
  void closeWindow(fcclWindow_t window);

  // As fcclDevicePushInit; the shape is right by itself.
  Status preparePush(int64_t tokens, int64_t hidden, fcclDataType_t dtype, fcclDevicePush_t* push) const {
    FCCL_TRY(usable());
    return engine_->preparePush(tokens, hidden, dtype, push);
  }

  // Carries the call out, or enqueues it. One thread at a time.
  Status run(CheckedCall& call);

  // Success while collectives may be issued; else why not.
  Status usable() const;
  // fcclInvalidUsage for every later collective.
  void finalize();
  // From any thread: makes this rank's waits end, and those of peers for this rank.
  void abort();
  // Success, or the failure that has ended the use of the communicator. From any thread.
  Status failed();

  // Where results of tuning are valid. Rank 0 asks: only its topology counts.
  TuningMachine tuningMachine();
  // AUTO decides by what was measured from now on, and anew where it has decided before. The same on all ranks.
  void adopt(const TuningTable& newer);
  // Ends the use of the communicator, and the waits of peers for this rank; the reason.
  Status giveUp(const Status& why);

  LastError& lastError() { return lastError_; }

 private:
  enum State : int { kUsable, kFinalized, kFailed };

  Communicator(int rank, int ranks, const Options& options);

  // The steps of create().
  Status meet(const fcclUniqueId& id);
  Status survey();
  Status agreeOnLinks(std::span<const RankRecord> records);
  Status loadTuning(std::span<const RankRecord> records);
  Status share();
  Status look();
  void watch();

  // The row that the call takes, or why there is none.
  Result<const StrategyRow*> chooseRow(const Query& query, fcclStrategy_t strategy) const;
  // The query of the call, with the windows that its buffers lie in entered into the call.
  Query queryOf(CheckedCall& call) const;
  Result<const Plan*> makePlan(const PlanKey& key, const Query& query, const CheckedCall& call);
  // FCCL_CHECK.
  Status compareCalls(const CheckedCall& call);
  host::CallSignature signature(const CheckedCall& call) const;
  // Set where this rank or a peer has aborted, given up or left: no call that begins now can end well, even if all that
  // it waits for is already there.
  host::Failure endedRank() const;
  // Looks for what has become of enqueued calls and of the ranks that they wait for. From any thread.
  void lookAfterEnqueued();
  // Ends the use of the communicator, unless it already has; the reason. `call`: the one that this rank is in, or
  // empty.
  Status fail(const host::Failure& failure, const std::string& call);
  // The same with the sentence that says why; `endReason` is what peers are told.
  Status end(const Status& why, uint32_t endReason, bool inCall);

  Options options_;
  std::unique_ptr<Bootstrap> bootstrap_;
  host::World world_;
  Facts facts_;
  mutable std::mutex tuning_;  // facts_.tuned, where the thread inside and others meet
  std::optional<Topology> topology_;
  uint32_t firstCall_ = 0;
  PlanCache plans_;
  std::optional<Autotune> autotune_;  // once the facts are known
  WindowTable windows_;
  std::unique_ptr<Engine> engine_;

  std::atomic<int> state_{kUsable};
  std::mutex failing_;  // one failure is the first
  LastError failure_;
  LastError lastError_;
  std::optional<Watcher> watcher_;
};

}  // namespace fccl
