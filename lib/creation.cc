// How a communicator comes to be. Every step ends with the same result on every rank, so that no rank goes on alone:
//   meet    bootstrap; every rank tells its record; settings that differ end it here
//   share   symmetric memory, armed before any peer can use it
//   look    what plans need to know of the machine, measured together
#include "base/check.h"
#include "base/log.h"
#include "lib/communicator.h"
#include "lib/rank_record.h"
#include "lib/testing.h"
#include "transport/numa.h"

namespace fccl {
namespace {

// Spinning helps only where the awaited rank has a core of its own.
constexpr int kPausesBeforeYield = 50;

Status injectedFailure(testing::CreationStep step, int rank) {
  const testing::TestOptions& options = testing::testOptions();
  if (options.failAt != step || options.failRank != rank) return {};
  return failure(fcclInternalError, "A test lets creation step {} fail.", static_cast<int>(step));
}

}  // namespace

testing::TestOptions& testing::testOptions() {
  static TestOptions options;
  return options;
}

Result<std::unique_ptr<Communicator>> Communicator::create(const fcclUniqueId& id, int rank, int ranks,
                                                           const Options& options) {
  std::unique_ptr<Communicator> communicator(new Communicator(rank, ranks, options));
  FCCL_TRY(communicator->meet(id));
  FCCL_TRY(communicator->share());
  FCCL_TRY(communicator->look());
  FCCL_INFO("rank {} of {}: {}, {} bytes per rank, flag {:.0f} ns, {}", rank, ranks, communicator->memory_->kind(),
            communicator->memory_->bytes(), communicator->facts_.flagNanoseconds,
            host::simdName(communicator->facts_.simd));
  return communicator;
}

Status Communicator::meet(const fcclUniqueId& id) {
  FCCL_TRY_ASSIGN(bootstrap_, Bootstrap::connect(id, rank(), ranks(), options_.bootstrap()));
  FCCL_TRY_ASSIGN(const std::vector<RankRecord> records, bootstrap_->exchange(makeRankRecord(options_)));
  FCCL_TRY(agreeOnRecords(records));

  const Neighbours neighbours = sameCores(records, rank());
  Status mine = injectedFailure(testing::CreationStep::kRecords, rank());
  if (mine.ok() && options_.bindCores) mine = bindThisThread(neighbours.index, neighbours.count);
  FCCL_TRY(bootstrap_->agree(mine));

  facts_.ranks = ranks();
  facts_.cores = coresOfAll(records);
  facts_.cacheBytes = cacheBytesPerRank(records);
  facts_.simd = options_.simd;
  world_.wait.pauses = ranks() <= facts_.cores ? kPausesBeforeYield : 0;
  return {};
}

Status Communicator::share() {
  world_.layout = host::makeLayout(ranks(), static_cast<size_t>(options_.slotBytes));
  HostMemoryOptions memoryOptions;
  memoryOptions.provider = options_.sharedMemory;
  memoryOptions.timeout = options_.initTimeout();
  FCCL_TRY_ASSIGN(memory_, createHostMemory(*bootstrap_, world_.layout.totalBytes(), memoryOptions));
  for (int r = 0; r < ranks(); r++) world_.memory.push_back(memory_->peer(r));
  world_.alive = [](const void* memory, int r) { return static_cast<const SymmetricMemory*>(memory)->alive(r); };
  world_.aliveContext = memory_.get();

  host::prepareMemory(world_, testing::testOptions().firstSequence);
  firstCall_ = world_.callSequence;
  // No rank may write into another's memory before that is armed.
  return bootstrap_->agree(injectedFailure(testing::CreationStep::kMemory, rank()));
}

Status Communicator::look() {
  facts_.slotBytes = world_.layout.slotBytes;
  facts_.lamportSlotBytes = world_.layout.lamportSlotBytes;
  world_.wait.timeout = options_.initTimeout();
  // More ranks than cores would measure the scheduler.
  if (ranks() <= facts_.cores) facts_.flagNanoseconds = host::measureFlagNanoseconds(world_);
  Status mine = injectedFailure(testing::CreationStep::kFacts, rank());
  if (mine.ok() && world_.failure.kind != host::FailureKind::kNone) {
    mine = failure(fcclRemoteError, "rank {} stopped answering while flags were timed.", world_.failure.rank);
  }
  world_.wait.timeout = std::chrono::milliseconds(options_.timeoutMs);
  return bootstrap_->agree(mine);
}

}  // namespace fccl
