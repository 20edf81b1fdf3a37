#include "lib/plan_cache.h"

namespace fccl {

const Plan* PlanCache::add(const PlanKey& key, const Plan& plan) {
  if (plans_.size() >= kCapacity) {
    last_ = nullptr;
    plans_.clear();
  }
  return remember(key, &plans_.insert_or_assign(key, plan).first->second);
}

}  // namespace fccl
