#include "lib/communicator.h"

#include "base/check.h"
#include "base/log.h"
#include "kernels/host/wait.h"
#include "lib/call_words.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

bool outputsAligned(const RowArgs& rows) {
  const auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (at(rows.reducedOut) | at(rows.residualOut) | at(rows.normOut) | at(rows.quantOut)) % kStreamAlignment == 0;
}

uint64_t placeIn(const fcclWindow* window, const void* start) {
  if (window == nullptr) return 0;
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(start) - window->start);
  return (uint64_t{window->number} + 1) << 48 | offset;
}

// For tests: the plan over another wire, where there is such a one.
Plan withWire(const Plan& plan, const Query& query, const Facts& facts, host::Wire wire) {
  Plan other;
  if (plan.protocol == host::Protocol::kOneshot) other = planOneshot(query, facts, wire);
  if (plan.protocol == host::Protocol::kTwoshot) other = planTwoshot(query, facts, wire);
  return other.kernel != nullptr ? other : plan;
}

// From what the caller has, its own rows, to what RowArgs says.
void spreadResidual(CheckedCall& call, const Caller& caller) {
  RowArgs& rows = call.call.rows;
  const auto before = static_cast<uintptr_t>(ownRows(rows.rows, caller.ranks, caller.rank).first) *
                      static_cast<uintptr_t>(rows.cols) * host::dtypeBytes(call.call.dtype);
  const auto back = [before](const void* p) {
    return p == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) - before);
  };
  rows.residual = back(rows.residual);
  rows.residualOut = back(rows.residualOut);
}

size_t dataBytes(const CheckedCall& call) {
  return static_cast<size_t>(call.call.rows.rows) * static_cast<size_t>(call.call.rows.cols) *
         host::dtypeBytes(call.call.dtype);
}

}  // namespace

Communicator::Communicator(int rank, int ranks, const Options& options) : options_(options) {
  world_.rank = rank;
  world_.ranks = ranks;
}

Status Communicator::usable() const {
  // Acquire: pairs with the release of whoever changed the state, so that its sentence is there. Free on x86.
  switch (state_.load(std::memory_order_acquire)) {
    case kUsable: return {};
    case kFailed: return failure_.get();
    default: return failure(fcclInvalidUsage, "The communicator has been finalized; no collective may follow.");
  }
}

Status Communicator::failed() {
  if (engine_->asynchronous()) lookAfterEnqueued();
  // Acquire: as in usable().
  return state_.load(std::memory_order_acquire) == kFailed ? failure_.get() : Status();
}

void Communicator::finalize() {
  int expected = kUsable;
  // Release: nothing is published with this state; the order costs nothing here.
  state_.compare_exchange_strong(expected, kFinalized, std::memory_order_release);
}

void Communicator::abort() {
  // Release: what this rank has staged before is complete for a peer that acquires the reason.
  world_.control(world_.rank).ended.value.store(host::kAborted, std::memory_order_release);
  bootstrap_->abort();
  engine_->stopWaits();
}

Communicator::~Communicator() {
  watcher_.reset();
  if (engine_ == nullptr || !engine_->asynchronous() || world_.memory.empty()) return;
  uint32_t running = host::kRunning;
  // Release: all that this rank has read and written of the control blocks comes before.
  world_.control(world_.rank)
      .ended.value.compare_exchange_strong(running, host::kLeft, std::memory_order_release, std::memory_order_relaxed);
}

bool Communicator::waits(CheckedCall& call) {
  if (!engine_->asynchronous() || options_.checkCalls || facts_.noNccl.empty()) return true;
  if (call.empty() || !autotune_->active()) return false;
  const Query query = queryOf(call);
  return plans_.find(PlanKey::of(query, call.strategy)) == nullptr && autotune_->wants(*this, call, query);
}

Status Communicator::run(CheckedCall& call) {
  // Acquire: as in usable().
  if (state_.load(std::memory_order_acquire) != kUsable) return usable();
  const Plan* plan = nullptr;
  if (!call.empty()) {
    const Query query = queryOf(call);
    const PlanKey key = PlanKey::of(query, call.strategy);
    plan = plans_.find(key);
    if (plan == nullptr) {
      if (autotune_->wants(*this, call, query)) FCCL_TRY(autotune_->measure(*this, call, query));
      FCCL_TRY_ASSIGN(plan, makePlan(key, query, call));
    }
  }

  // Relaxed: read by peers for error texts only.
  world_.control(world_.rank).calls.value.store(world_.callSequence + 1, std::memory_order_relaxed);
  if (const host::Failure ended = endedRank(); ended.kind != host::FailureKind::kNone) [[unlikely]] {
    return fail(ended, describe(signature(call)));
  }
  bool counted = true;
  if (options_.checkCalls) [[unlikely]] {
    bool compare = false;
    FCCL_TRY(engine_->inspect(call, &compare));
    counted = compare;
    Status same = compare ? compareCalls(call) : Status();
    if (!same.ok()) {
      world_.callSequence++;
      return same;
    }
  }
  if (counted) world_.callSequence++;
  if (plan == nullptr) return {};

  if (call.call.rows.residualSharded) spreadResidual(call, caller());
  Status done = engine_->run(call, *plan);
  if (world_.failure.kind != host::FailureKind::kNone) return fail(world_.failure, describe(signature(call)));
  return done;
}

Result<double> Communicator::flagNanoseconds() {
  const double time = engine_->flagNanoseconds();
  if (world_.failure.kind != host::FailureKind::kNone) return fail(world_.failure, "the timing of a flag");
  return time;
}

host::Failure Communicator::endedRank() const {
  for (int r = 0; r < world_.ranks; r++) {
    // Acquire: pairs with the release of the rank that has ended, for the reason.
    if (world_.control(r).ended.value.load(std::memory_order_acquire) == host::kRunning) continue;
    return {r == world_.rank ? host::FailureKind::kAbortedHere : host::FailureKind::kPeerAborted, r};
  }
  return engine_->lateRank();
}

void Communicator::lookAfterEnqueued() {
  // Acquire: as in usable().
  if (state_.load(std::memory_order_acquire) == kFailed) return;
  host::Failure found = engine_->lateRank();
  for (int r = 0; r < world_.ranks && found.kind == host::FailureKind::kNone; r++) {
    // Acquire: as in endedRank(). Whoever has left in good order has done its part of every call that is enqueued here.
    const uint32_t ended = world_.control(r).ended.value.load(std::memory_order_acquire);
    if (ended == host::kLeft) continue;
    if (ended != host::kRunning) {
      found = {r == world_.rank ? host::FailureKind::kAbortedHere : host::FailureKind::kPeerAborted, r};
    } else if (r != world_.rank) {
      const host::Failure end = host::endOf(world_, r);
      // Acquire: as above.
      if (world_.control(r).ended.value.load(std::memory_order_acquire) != host::kLeft) found = end;
    }
  }
  if (found.kind != host::FailureKind::kNone) {
    (void)fail(found, {});
  } else if (const Status failed = engine_->enqueuedError(); !failed.ok()) {
    (void)end(failed, endedBecauseOf(world_, {host::FailureKind::kCutShort, world_.rank}), false);
  }
}

Query Communicator::queryOf(CheckedCall& call) const {
  const RowArgs& rows = call.call.rows;
  Query query;
  query.dtype = call.call.dtype;
  query.op = call.call.op;
  query.pattern = call.pattern;
  query.norm = call.norm();
  query.quant = rows.quant;
  query.packsAligned = cuda::packsAligned(rows, call.call.dtype);
  query.inputPushed = rows.inputPushed;
  query.residualSharded = rows.residualSharded;
  query.rows = rows.rows;
  query.cols = rows.cols;
  query.outputsAligned = rowLengthsAligned(query) && outputsAligned(rows);
  if (windows_.empty()) return query;

  const size_t bytes = dataBytes(call);
  // With a norm every rank reads the peers' inputs row by row while it writes its outputs, so none may stand in an
  // input.
  const bool inPlace = query.norm && (rows.reducedOut == rows.input || rows.normOut == rows.input);
  const fcclWindow* input = inPlace ? nullptr : windows_.find(rows.input, bytes);
  if (input != nullptr) {
    query.inputInWindow = true;
    call.call.windows.input = input->deltas.data();
  }
  const fcclWindow* output = query.norm ? nullptr : windows_.find(rows.reducedOut, bytes);
  if (output != nullptr) {
    query.outputInWindow = true;
    call.call.windows.reducedOut = output->deltas.data();
  }
  query.windowsAligned = (input == nullptr || input->aligned) && (output == nullptr || output->aligned);
  return query;
}

Result<const StrategyRow*> Communicator::chooseRow(const Query& query, fcclStrategy_t strategy) const {
  const Reason noKernel = notOnDevice(query, facts_);
  const auto cannot = [&](const StrategyRow& row) {
    return noKernel.empty() || isNccl(row.id) ? row.eligible(query, facts_) : noKernel;
  };
  if (query.inputPushed) return &kOneshotRow;
  if (query.residualSharded) strategy = fcclStrategyTwoshot;
  if (strategy != fcclStrategyAuto) {
    const StrategyRow* row = findStrategy(strategy);
    const Reason reason = cannot(*row);
    if (reason.empty()) return row;
    return failure(fcclInvalidArgument, "strategy {} cannot do this call: {}", row->name, reason);
  }
  if (options_.strategy != fcclStrategyAuto) {
    const StrategyRow* row = findStrategy(options_.strategy);
    const Reason reason = cannot(*row);
    if (reason.empty()) return row;
    FCCL_INFO("{} rows x {} columns: AUTO does not stand for {} here: {}", query.rows, query.cols, row->name, reason);
  }
  if (noKernel.empty()) return &chooseStrategy(query, facts_);
  if (kNcclRow.eligible(query, facts_).empty()) return &kNcclRow;
  return failure(fcclInvalidArgument, "{}", noKernel);
}

Result<const Plan*> Communicator::makePlan(const PlanKey& key, const Query& query, const CheckedCall& call) {
  FCCL_TRY_ASSIGN(const StrategyRow* row, chooseRow(query, call.strategy));
  Plan plan = row->plan(query, facts_);
  if (world_.hooks != nullptr && world_.hooks->forceWire) {
    plan = withWire(plan, query, facts_, static_cast<host::Wire>(world_.hooks->wire));
  }
  if (facts_.device == fcclDeviceHost && plan.kernel == nullptr) {
    return failure(fcclInternalError, "{} has no kernel for {} of {} x {}.", row->name, host::dtypeName(query.dtype),
                   query.rows, query.cols);
  }
  FCCL_TRACE("{} rows x {} columns of {}: {}, {} rows x {} columns per chunk", query.rows, query.cols,
             host::dtypeName(query.dtype), row->name, plan.shape.rowsPerChunk, plan.shape.colsPerChunk);
  FCCL_TRY(engine_->prepare(call, &plan));
  if (world_.rowScratch.size() < plan.rowScratchBytes) world_.rowScratch.resize(plan.rowScratchBytes);
  return plans_.add(key, plan);
}

host::CallSignature Communicator::signature(const CheckedCall& call) const {
  if (call.empty() || windows_.empty()) return signatureOf(call, 0, 0);
  const RowArgs& rows = call.call.rows;
  const fcclWindow* input = call.call.windows.input != nullptr ? windows_.find(rows.input, dataBytes(call)) : nullptr;
  const fcclWindow* output =
      call.call.windows.reducedOut != nullptr ? windows_.find(rows.reducedOut, dataBytes(call)) : nullptr;
  return signatureOf(call, placeIn(input, rows.input), placeIn(output, rows.reducedOut));
}

Status Communicator::compareCalls(const CheckedCall& call) {
  const host::CallSignature mine = signature(call);
  host::CallSignature theirs;
  int other = -1;
  const bool same = host::compareSignatures(world_, mine, &other, &theirs);
  if (world_.failure.kind != host::FailureKind::kNone) return fail(world_.failure, describe(mine));
  if (same) return {};
  const bool otherFirst = other < world_.rank;
  const bool pushed = saysInputPushed(mine) || saysInputPushed(theirs);
  return failure(
      fcclInvalidUsage, "The ranks call different collectives: rank {} calls {}, rank {} calls {}. {}",
      otherFirst ? other : world_.rank, describe(otherFirst ? theirs : mine), otherFirst ? world_.rank : other,
      describe(otherFirst ? mine : theirs),
      pushed ? "What was pushed stands in the peers' slots: destroy the communicator." : "Nothing has been moved.");
}

Status Communicator::fail(const host::Failure& failed, const std::string& call) {
  return end(describeFailure(world_, failed, call, firstCall_), endedBecauseOf(world_, failed), !call.empty());
}

Status Communicator::giveUp(const Status& why) {
  return end(why, endedBecauseOf(world_, {host::FailureKind::kCutShort, world_.rank}), true);
}

Facts Communicator::factsForAnyThread() const {
  const std::lock_guard lock(tuning_);
  return facts_;
}

void Communicator::adopt(const TuningTable& newer) {
  if (newer.points() == 0) return;
  auto all = std::make_shared<TuningTable>();
  if (facts_.tuned != nullptr) *all = *facts_.tuned;
  all->merge(newer);
  const std::lock_guard lock(tuning_);
  facts_.tuned = std::move(all);
  plans_.clear();
}

TuningMachine Communicator::tuningMachine() {
  TuningMachine machine;
  machine.topology = topologySignature(topology());
  machine.version = libraryVersion();
  machine.device = facts_.device;
  machine.ranks = ranks();
  machine.ranksPerDevice = facts_.ranksPerDevice;
  machine.workspaceBytes =
      static_cast<size_t>(facts_.device == fcclDeviceCuda ? options_.cudaWorkspaceBytes : options_.slotBytes);
  return machine;
}

Status Communicator::end(const Status& why, uint32_t endReason, bool inCall) {
  {
    const std::lock_guard lock(failing_);
    // Relaxed: all that is read with this state was written under the lock.
    if (state_.load(std::memory_order_relaxed) == kFailed) return failure_.get();
    // Release: what this rank has staged before is complete for a peer that acquires the reason. Where the communicator
    // was aborted, that stays the reason.
    uint32_t running = host::kRunning;
    world_.control(world_.rank)
        .ended.value.compare_exchange_strong(running, endReason, std::memory_order_release, std::memory_order_relaxed);
    failure_.set(why);
    if (!inCall) lastError_.set(why);
    // Release: the sentence is there for whoever sees the state.
    state_.store(kFailed, std::memory_order_release);
  }
  // After the reason is there, so that whoever finds its kernels ended finds it.
  engine_->stopWaits();
  return failure_.get();
}

Result<fcclWindow_t> Communicator::openWindow(void* buffer, size_t bytes) {
  FCCL_TRY_ASSIGN(std::unique_ptr<SymmetricMemory> memory, engine_->mapWindow(*bootstrap_, buffer, bytes));
  return windows_.add(std::move(memory), buffer, bytes, rank(), ranks());
}

void Communicator::closeWindow(fcclWindow_t window) {
  engine_->forgetWindow(window->start);
  windows_.remove(window);
}

}  // namespace fccl
