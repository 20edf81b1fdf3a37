#include <algorithm>

#include "tuner/chunking.h"
#include "tuner/cost_model.h"
#include "tuner/static_table.h"
#include "tuner/strategies.h"
#include "tuner/tuning_table.h"

namespace fccl {
namespace {

constexpr size_t kOneshotBytes = 32 << 10;
constexpr int64_t kTwoshotRows = 8;
// Two ranks far from each other, NVFP4 without norm out: TWOSHOT quantizes each row once and gathers what is small.
constexpr size_t kFarTwoshotBytesNvfp4 = 96 << 10;

// From three ranks on ONESHOT moves more bytes over the links than TWOSHOT, which waits twice.
// Measured with ranks that share one H200 (docs/performance.md); four and eight GPUs may say otherwise.
constexpr int kFewRanks = 4;
constexpr size_t kCudaOneshotBytesFew = 640 << 10;  // plain
constexpr size_t kCudaOneshotBytesFewNorm = 1280 << 10;
constexpr size_t kCudaOneshotBytesMany = 240 << 10;  // plain
constexpr size_t kCudaOneshotBytesManyNorm = 640 << 10;

// User buffers save the staging and pay for two barriers. Measured on CUDA with two ranks that share one H200; with a
// GPU for each rank, where the link decides, they have not been measured, and are taken by name only.
constexpr size_t kCudaWindowBytes = 4 << 20;
constexpr size_t kCudaWindowBytesNorm = 8 << 20;

bool prefersWindows(const Query& query, const Facts& facts) {
  if (!kUserBufferRow.eligible(query, facts).empty()) return false;
  if (facts.device == fcclDeviceHost) return true;
  const size_t least = query.norm ? kCudaWindowBytesNorm : kCudaWindowBytes;
  return facts.ranks == 2 && facts.ranksPerDevice == 2 && payloadBytes(query) >= least;
}

bool prefersTwoshot(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) {
    const size_t few = query.norm ? kCudaOneshotBytesFewNorm : kCudaOneshotBytesFew;
    const size_t many = query.norm ? kCudaOneshotBytesManyNorm : kCudaOneshotBytesMany;
    const size_t most = facts.ranks <= kFewRanks ? few : many;
    return facts.ranks > 2 && (!query.norm || query.rows >= facts.ranks) && payloadBytes(query) > most;
  }
  if (facts.ranks > 2) return payloadBytes(query) > kOneshotBytes;
  if (facts.ranks == 1) return false;
  if (!ranksAreNear(facts)) {
    return query.pattern == fcclPatternResidualRmsNormQuantNvfp4 && payloadBytes(query) >= kFarTwoshotBytesNvfp4;
  }
  return query.norm ? query.rows >= kTwoshotRows : payloadBytes(query) > kOneshotBytes;
}

// Tables and the model are about GPUs with links between them.
bool knowsMachine(const Facts& facts) {
  return facts.device == fcclDeviceCuda && facts.group.ranksPerGpu == 1 && facts.group.link != LinkKind::kSelf &&
         facts.group.sm > 0;
}

bool isEligible(const StrategyRow& row, const Query& query, const Facts& facts) {
  return cannot(row, query, facts).empty();
}

// NCCL's bits depend on the number of tokens: AUTO takes it where nothing else can do the call.
bool isPreferred(const StrategyRow& row) { return !isNccl(row.id) && row.byNameOnly == nullptr; }

// The row that a cell names; NULL, with the reason in `step`, where the cell settles nothing. What other kernels lost
// against NCCL says nothing about these.
const StrategyRow* rowOfCell(const StaticTable& table, const TableCell& cell, const Query& query, const Facts& facts,
                             std::string* step) {
  const char* name = tableStrategyName(cell.strategy);
  *step = fmt::format("Table {} ({}): {} ranks, hidden {}, {} tokens: {}", table.name, table.device, cell.ranks,
                      cell.hidden, cell.tokens, name);
  const StrategyRow* row = findStrategy(static_cast<fcclStrategy_t>(cell.strategy));
  const bool ours = std::string_view(table.kernels) == "fccl";
  if (std::string_view(name) == "NCCL" && !ours) {
    *step += ", where NCCL beat that table's kernels, not FCCL's: the model decides.";
    return nullptr;
  }
  if (row == nullptr || !isPreferred(*row) || !isEligible(*row, query, facts)) {
    *step += ", which is not to be had here: the model decides.";
    return nullptr;
  }
  *step += ".";
  return row;
}

const StrategyRow* byTable(const Query& query, const Facts& facts, std::vector<std::string>* steps) {
  constexpr int kOldestTable = 90;  // older GPUs are not like those that were swept
  if (!isNvlink(facts.group.link) || facts.group.sm < kOldestTable) {
    steps->push_back(
        fmt::format("Tables are for NVLink and compute capability 9.0 or more; these GPUs have {}.{} and {}.",
                    facts.group.sm / 10, facts.group.sm % 10, linkKindName(facts.group.link)));
    return nullptr;
  }
  for (const char* kernels : {"fccl", "trtllm"}) {
    const StaticTable* table = findTable(kernels, facts.group.sm);
    if (table == nullptr) continue;
    const TableCell* cell = lookUp(*table, tableKey(query, facts.ranks));
    if (cell == nullptr) {
      steps->push_back(fmt::format("Table {} has nothing for so many ranks, columns or tokens.", table->name));
      continue;
    }
    const StrategyRow* row = rowOfCell(*table, *cell, query, facts, &steps->emplace_back());
    if (row != nullptr) return row;
  }
  return nullptr;
}

const StrategyRow* byModel(const Query& query, const Facts& facts, std::vector<std::string>* steps) {
  const StrategyRow* best = nullptr;
  double least = 0;
  std::string times;
  for (const StrategyRow& row : strategies()) {
    if (!isPreferred(row) || !isEligible(row, query, facts)) continue;
    const std::optional<Cost> cost = predict(row.name, query, facts);
    if (!cost) continue;
    times += fmt::format("{}{} {:.1f} us", times.empty() ? "" : ", ", row.name, cost->total());
    if (best != nullptr && cost->total() >= least) continue;
    best = &row;
    least = cost->total();
  }
  steps->push_back(best == nullptr ? "The model knows no rate of these links, or of the memory."
                                   : fmt::format("Model: {}.", times));
  return best;
}

const StrategyRow* byTuning(const Query& query, const Facts& facts, std::vector<std::string>* steps) {
  if (facts.tuned == nullptr) return nullptr;
  const TuningPoint* point = facts.tuned->find(seriesOf(query), tuningSize(query));
  if (point == nullptr) {
    steps->emplace_back("Tuned, but for no call of this kind and about this size.");
    return nullptr;
  }
  std::string times;
  for (const TuningTime& time : point->times) {
    times += fmt::format("{}{} {:.1f} us ({:.1f} warm, {:.1f} cold)", times.empty() ? "" : ", ",
                         findStrategy(time.strategy)->name, time.mean(), time.warm, time.cold);
  }
  const StrategyRow* row = findStrategy(point->choice);
  const bool possible = isEligible(*row, query, facts);
  steps->push_back(fmt::format("Tuned, measured at {} {}: {}: {}{}.", point->size, query.norm ? "tokens" : "bytes",
                               times, row->name, possible ? "" : ", which cannot do this call"));
  return possible ? row : nullptr;
}

const StrategyRow* byRule(const Query& query, const Facts& facts, std::vector<std::string>* steps) {
  const bool two = prefersTwoshot(query, facts);
  const char* what = facts.device == fcclDeviceHost ? "HOST: size, ranks and the measured time of a flag"
                     : facts.ranksPerDevice > 1     ? "Ranks share a GPU: the size, as measured on one H200"
                     : facts.ranks == 1             ? "One rank has nobody to wait for"
                                                    : "CUDA, links not known: the size";
  steps->push_back(fmt::format("{}: {}.", what, two ? "TWOSHOT" : "ONESHOT"));
  return two ? &kTwoshotRow : &kOneshotRow;
}

}  // namespace

bool isMeasured(const Query& query, const Facts& facts) {
  if (facts.tuned != nullptr && facts.tuned->find(seriesOf(query), tuningSize(query)) != nullptr) return true;
  if (!knowsMachine(facts) || !isNvlink(facts.group.link)) return false;
  const StaticTable* table = findTable("fccl", facts.group.sm);
  return table != nullptr && lookUp(*table, tableKey(query, facts.ranks)) != nullptr;
}

Decision decide(const Query& query, const Facts& facts) {
  Decision decision;
  const auto eligible = [&](const StrategyRow& row) {
    return row.byNameOnly == nullptr && isEligible(row, query, facts);
  };
  if (std::ranges::none_of(strategies(), eligible)) {
    decision.steps.push_back(cannot(kOneshotRow, query, facts));
    return decision;
  }
  decision.row = byTuning(query, facts, &decision.steps);
  if (decision.row == nullptr && prefersWindows(query, facts)) {
    decision.row = &kUserBufferRow;
    decision.steps.emplace_back("The buffers lie in windows, which saves the staging: UB.");
  }
  if (decision.row == nullptr && knowsMachine(facts)) decision.row = byTable(query, facts, &decision.steps);
  if (decision.row == nullptr && knowsMachine(facts)) decision.row = byModel(query, facts, &decision.steps);
  if (decision.row == nullptr) decision.row = byRule(query, facts, &decision.steps);
  if (!isEligible(*decision.row, query, facts)) {
    const Reason reason = cannot(*decision.row, query, facts);
    decision.row = &*std::ranges::find_if(strategies(), eligible);
    decision.steps.push_back(fmt::format("{} So {}.", reason, decision.row->name));
  }
  return decision;
}

const StrategyRow& chooseStrategy(const Query& query, const Facts& facts) {
  const Decision decision = decide(query, facts);
  return decision.row != nullptr ? *decision.row : kOneshotRow;
}

}  // namespace fccl
