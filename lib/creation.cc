// How a communicator comes to be. Every step ends with the same result on every rank, so that no rank goes on alone:
//   meet    bootstrap; every rank tells its record; settings that differ end it here; then the topology, and what was
//           tuned before
//   share   symmetric memory, armed before any peer can use it
//   look    what plans need to know of the machine, measured together
#include <algorithm>

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

// How often enqueued calls are looked after. A few microseconds of work each time.
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

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
  communicator->autotune_.emplace(options.autotune, communicator->facts_);
  communicator->watch();
  FCCL_INFO("rank {} of {}: {}", rank, ranks, communicator->engine_->describe());
  return communicator;
}

Status Communicator::meet(const fcclUniqueId& id) {
  FCCL_TRY_ASSIGN(bootstrap_, Bootstrap::connect(id, rank(), ranks(), options_.bootstrap()));
  const Result<RankRecord> record = makeRankRecord(options_);
  FCCL_TRY(bootstrap_->agree(record.status()));
  FCCL_TRY_ASSIGN(const std::vector<RankRecord> records, bootstrap_->exchange(record.value()));
  FCCL_TRY(agreeOnRecords(records));

  const Neighbours neighbours = sameCores(records, rank());
  Status mine = injectedFailure(testing::CreationStep::kRecords, rank());
  if (mine.ok() && options_.bindCores) mine = bindThisThread(neighbours.index, neighbours.count);
  FCCL_TRY(bootstrap_->agree(mine));

  facts_.device = options_.deviceType;
  facts_.ranksPerDevice = ranksPerDevice(records);
  facts_.ranks = ranks();
  facts_.cores = coresOfAll(records);
  facts_.cacheBytes = cacheBytesPerRank(records);
  facts_.simd = options_.simd;
  FCCL_TRY(survey());
  FCCL_TRY(agreeOnLinks(records));
  FCCL_TRY(loadTuning(records));
  world_.wait.pauses = ranks() <= facts_.cores ? kPausesBeforeYield : 0;
  engine_ = options_.deviceType == fcclDeviceCuda ? makeCudaEngine(world_, options_, facts_.ranksPerDevice)
                                                  : makeHostEngine(world_, options_);
  return {};
}

Status Communicator::survey() {
  if (options_.topologyFile.empty() && options_.topologyDump.empty()) return bootstrap_->agree({});
  Status mine;
  if (!options_.topologyFile.empty()) {
    Result<Topology> read = readTopology(options_.topologyFile);
    mine = read.status();
    if (read.ok()) topology_ = std::move(read.value());
  }
  if (mine.ok() && rank() == 0 && !options_.topologyDump.empty())
    mine = writeTopology(topology(), options_.topologyDump);
  return bootstrap_->agree(mine);
}

// By rank 0's topology, whatever the others see, so that all decide alike.
Status Communicator::agreeOnLinks(std::span<const RankRecord> records) {
  facts_.group = groupOf(records);
  if (options_.deviceType != fcclDeviceCuda) return {};
  if (rank() == 0) {
    addLinks(topology(), records, &facts_.group);
    for (const std::string& note : topology().notes) FCCL_INFO("topology: {}", note);
  }
  FCCL_TRY_ASSIGN(const std::vector<GroupFacts> all, bootstrap_->exchange(facts_.group));
  facts_.group = all[0];
  return {};
}

// By rank 0's file, whatever the others have, so that all decide alike.
Status Communicator::loadTuning(std::span<const RankRecord> records) {
  if (records[0].tuningFile == 0) return {};
  std::string text;
  if (rank() == 0) {
    const Result<TuningFile> file = TuningFile::read(options_.tuningFile);
    if (!file.ok()) FCCL_WARN("Not tuned, since {}", file.status().message());
    const TuningMachine machine = tuningMachine();
    const TuningTable* table = file.ok() ? file.value().find(machine) : nullptr;
    if (table != nullptr) {
      TuningFile own;
      own.merge(machine, *table);
      text = own.json();
    } else if (file.ok()) {
      FCCL_INFO("Tuning file {} has nothing for {} on this machine.", options_.tuningFile, describe(machine));
    }
  }
  FCCL_TRY_ASSIGN(const std::vector<uint64_t> sizes, bootstrap_->exchange(uint64_t{text.size()}));
  if (sizes[0] == 0) return {};
  const auto bytes = static_cast<size_t>(sizes[0]);
  std::string all(bytes * static_cast<size_t>(ranks()), '\0');
  if (rank() == 0) std::ranges::copy(text, all.begin());
  FCCL_TRY(bootstrap_->allGather(all.data(), bytes));
  all.resize(bytes);
  const Result<TuningFile> told = TuningFile::parse(all, "what rank 0 has told of its tuning file");
  FCCL_TRY(bootstrap_->agree(told.status()));
  adopt(told.value().machines().front().second);
  FCCL_INFO("{} tuned points of rank 0's tuning file.", facts_.tuned->points());
  return {};
}

const Topology& Communicator::topology() {
  if (topology_.has_value()) return *topology_;
  // Looked at once per process, since NVML takes its time.
  static const Topology machine = detectTopology();
  return machine;
}

Status Communicator::share() {
  FCCL_TRY(engine_->share(*bootstrap_));
  firstCall_ = world_.callSequence;
  // No rank may write into another's memory before that is armed.
  return bootstrap_->agree(injectedFailure(testing::CreationStep::kMemory, rank()));
}

Status Communicator::look() {
  world_.wait.timeout = options_.initTimeout();
  Status mine = engine_->look(*bootstrap_, &facts_);
  if (const Status injected = injectedFailure(testing::CreationStep::kFacts, rank()); !injected.ok()) mine = injected;
  world_.wait.timeout = std::chrono::milliseconds(options_.timeoutMs);
  return bootstrap_->agree(mine);
}

void Communicator::watch() {
  if (!engine_->asynchronous()) return;
  watcher_.emplace(kWatchPeriod, [this] {
    try {
      lookAfterEnqueued();
    } catch (const std::exception&) {
      return true;  // no memory for the sentence; the next look tries again
    }
    // Acquire: as in usable().
    return state_.load(std::memory_order_acquire) != kFailed;
  });
}

}  // namespace fccl
