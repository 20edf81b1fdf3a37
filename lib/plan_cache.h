// The plans of one communicator, by shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "tuner/registry.h"

namespace fccl {

struct PlanKey {
  int64_t rows = 0;
  int64_t cols = 0;
  uint64_t facts = 0;  // everything else of the query, and the strategy asked for
  bool operator==(const PlanKey&) const = default;

  static PlanKey of(const Query& query, fcclStrategy_t strategy) {
    const uint64_t flags = (query.norm ? 1u : 0u) | (query.outputsAligned ? 2u : 0u) | (query.inputInWindow ? 4u : 0u) |
                           (query.outputInWindow ? 8u : 0u) | (query.packsAligned ? 16u : 0u) |
                           static_cast<uint64_t>(query.quant) << 5 | (query.windowsAligned ? 128u : 0u) |
                           (query.inputPushed ? 1u << 12 : 0u) | (query.residualSharded ? 1u << 21 : 0u) |
                           static_cast<uint64_t>(query.pattern) << 13;
    return {query.rows, query.cols,
            flags | static_cast<uint64_t>(query.dtype) << 8 | static_cast<uint64_t>(query.op) << 16 |
                static_cast<uint64_t>(strategy) << 24};
  }
};

class PlanCache {
 public:
  // NULL where there is none yet. The plan of the call before is found without hashing.
  const Plan* find(const PlanKey& key) {
    if (last_ != nullptr && lastKey_ == key) return last_;
    const auto it = plans_.find(key);
    return it == plans_.end() ? nullptr : remember(key, &it->second);
  }
  const Plan* add(const PlanKey& key, const Plan& plan);
  void clear();
  size_t size() const { return plans_.size(); }

  // A caller with ever new shapes must not grow the cache for ever; at this many it starts anew.
  static constexpr size_t kCapacity = 4096;

 private:
  struct Hash {
    size_t operator()(const PlanKey& key) const {
      uint64_t h = static_cast<uint64_t>(key.rows) * 0x9e3779b97f4a7c15u;
      h = (h ^ (h >> 32) ^ static_cast<uint64_t>(key.cols)) * 0xd6e8feb86659fd93u;
      h = (h ^ (h >> 32) ^ key.facts) * 0xd6e8feb86659fd93u;
      return static_cast<size_t>(h ^ (h >> 32));
    }
  };

  const Plan* remember(const PlanKey& key, const Plan* plan) {
    lastKey_ = key;
    last_ = plan;
    return plan;
  }

  std::unordered_map<PlanKey, Plan, Hash> plans_;  // its elements keep their addresses
  PlanKey lastKey_;
  const Plan* last_ = nullptr;
};

}  // namespace fccl
