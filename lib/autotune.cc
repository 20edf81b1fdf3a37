#include "lib/autotune.h"

#include <bit>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "kernels/host/wait.h"
#include "lib/testing.h"
#include "lib/tuning_run.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

// Of one bucket; docs/selection.md says what it usually takes.
constexpr std::chrono::milliseconds kBudget{2000};
constexpr std::chrono::milliseconds kPause{1};

// By ratio.
int64_t nearestPowerOfTwo(int64_t size) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
  const double ratio = static_cast<double>(size) / static_cast<double>(below);
  return ratio * ratio > 2 ? 2 * below : below;
}

fcclQuery_t kindOf(const CheckedCall& call, const Query& query) {
  fcclQuery_t asked = FCCL_QUERY_INITIALIZER;
  asked.pattern = call.pattern;
  asked.dtype = query.dtype;
  asked.op = query.op;
  asked.tokens = query.rows;
  asked.hidden = query.cols;
  asked.inputInWindow = query.inputInWindow ? 1 : 0;
  asked.outputInWindow = query.outputInWindow ? 1 : 0;
  return asked;
}

// The ranks that have come, in host::Control::tuning of rank 0; above them, that somebody has given up.
constexpr uint32_t kGivenUp = 1u << 16;

bool isAnyGone(const host::World& world) {
  for (int r = 0; r < world.ranks; r++) {
    // Relaxed: the call that follows reads it again, and says why.
    if (world.control(r).ended.value.load(std::memory_order_relaxed) != host::kRunning) return true;
    if (r != world.rank && host::endOf(world, r).kind != host::FailureKind::kNone) return true;
  }
  return false;
}

// True on every rank, or on none.
bool allCome(host::World& world, std::chrono::milliseconds patience) {
  std::atomic<uint32_t>& word = world.control(0).tuning.value;
  const auto all = static_cast<uint32_t>(world.ranks);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  // Relaxed, here and below: the word alone decides, and all that is said later goes over the bootstrap.
  uint32_t now = word.fetch_add(1, std::memory_order_relaxed) + 1;
  while (now < all) {
    if ((std::chrono::steady_clock::now() >= deadline || isAnyGone(world)) &&
        word.compare_exchange_weak(now, now | kGivenUp, std::memory_order_relaxed)) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
    now = word.load(std::memory_order_relaxed);
  }
  return now == all;
}

}  // namespace

Autotune::Autotune(std::optional<bool> asked, const Facts& facts)
    : always_(asked.value_or(false)),
      active_(facts.ranks > 1 && asked.value_or(facts.device == fcclDeviceCuda && facts.ranksPerDevice == 1)) {}

Autotune::Bucket Autotune::bucketOf(const Query& query) {
  return {seriesOf(query), nearestPowerOfTwo(tuningSize(query))};
}

void Autotune::stop(const char* why) {
  active_ = false;
  FCCL_INFO("FCCL_AUTOTUNE: nothing more is measured by itself: {}", why);
}

bool Autotune::wants(Communicator& communicator, const CheckedCall& call, const Query& query) {
  const bool decides = call.strategy == fcclStrategyAuto && communicator.options().strategy == fcclStrategyAuto;
  if (!active_ || !decides || query.inputPushed || query.residualSharded) return false;
  const Facts& facts = communicator.facts();
  const Bucket bucket = bucketOf(query);
  if (tried_.contains(bucket)) return false;
  const bool known = facts.tuned != nullptr && facts.tuned->at(bucket.first, bucket.second) != nullptr;
  if (known || (!always_ && isMeasured(query, facts)) || tuningCandidates(query, facts).size() < 2) {
    tried_.insert(bucket);
    return false;
  }
  const Result<bool> captured = communicator.engine().isCaptured(call.stream);
  if (!captured.ok()) return false;  // the call itself meets the error, and says it
  if (!captured.value()) return true;
  if (!toldOfCapture_) FCCL_INFO("FCCL_AUTOTUNE: calls that are captured first are not measured.");
  toldOfCapture_ = true;
  return false;
}

Status Autotune::measure(Communicator& communicator, const CheckedCall& call, const Query& query) {
  host::World& world = communicator.world();
  const Bucket bucket = bucketOf(query);
  if (!allCome(world, kPatience)) {
    stop("not all ranks came to the first call of a new size within two seconds.");
    return {};
  }
  tried_.insert(bucket);
  FCCL_TRY(communicator.bootstrap().barrier());  // all have seen that all are here
  // Relaxed: the others come here again only after the tuner's messages, which this rank sends later.
  if (world.rank == 0) world.control(0).tuning.value.store(0, std::memory_order_relaxed);

  const fcclQuery_t asked = TuningRun::resized(kindOf(call, query), bucket.second);
  const auto run = TuningRun::begin(communicator, {&asked, 1}, kBudget * testing::testOptions().slowness);
  if (!run.ok()) {
    FCCL_TRY(communicator.usable());
    FCCL_WARN("FCCL_AUTOTUNE: {}", run.status().message());
    stop("a call could not be measured.");
    return {};
  }
  FCCL_TRY_ASSIGN(const TuningTable results, run.value()->all(communicator.facts().tuned.get()));
  return run.value()->end(results);
}

}  // namespace fccl
