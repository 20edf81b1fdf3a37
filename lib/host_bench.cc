#include "lib/host_bench.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "transport/symmetric_memory.h"

namespace fccl {
namespace {

class HostBench final : public Bench {
 public:
  explicit HostBench(size_t cacheBytes) : cacheBytes_(cacheBytes) {}
  ~HostBench() override {
    if (memory_ != nullptr) (void)freeWindowMemory(memory_);
  }

  size_t cacheBytes() const override { return cacheBytes_; }

  Result<char*> allocate(size_t bytes) override {
    FCCL_TRY_ASSIGN(memory_, allocateWindowMemory(bytes));
    std::memset(memory_, kSmallNumber, bytes);
    return static_cast<char*>(memory_);
  }

  Result<int> add(const Call& call, int calls, int sets) override {
    bursts_.push_back({call, calls, sets, 0});
    return static_cast<int>(bursts_.size()) - 1;
  }

  Result<double> run(int number) override {
    Burst& burst = bursts_[static_cast<size_t>(number)];
    FCCL_TRY(burst.once());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < burst.calls; i++) FCCL_TRY(burst.once());
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    return time.count() / burst.calls;
  }

  void clear() override { bursts_.clear(); }

 private:
  static constexpr int kSmallNumber = 0x3c;  // of every byte: 0.01 in bf16 and fp32, 1.06 in fp16

  struct Burst {
    Call call;
    int calls;
    int sets;
    int next;
    Status once() {
      const int set = next;
      next = (next + 1) % sets;
      return call(nullptr, set);
    }
  };

  const size_t cacheBytes_;
  void* memory_ = nullptr;
  std::vector<Burst> bursts_;
};

}  // namespace

std::unique_ptr<Bench> makeHostBench(size_t cacheBytes) { return std::make_unique<HostBench>(cacheBytes); }

}  // namespace fccl
