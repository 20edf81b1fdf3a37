#include "lib/plan_cache.h"

namespace fccl {

const Plan* PlanCache::add(const PlanKey& key, const Plan& plan) {
  if (plans_.size() >= kCapacity) clear();
  return remember(key, &plans_.insert_or_assign(key, plan).first->second);
}

void PlanCache::clear() {
  last_ = nullptr;
  plans_.clear();
}

}  // namespace fccl
