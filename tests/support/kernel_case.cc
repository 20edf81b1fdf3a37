#include "tests/support/kernel_case.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/formats.h"

using namespace fccl::host;

namespace fccl::test {
namespace {

// Aligned as outputs must be that are written past the caches.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const { return true; }
};
using Bytes = std::vector<uint8_t, LineAllocator<uint8_t>>;

float elementOf(fcclDataType_t dtype, const void* data, size_t i) {
  if (dtype == fcclFloat32) return static_cast<const float*>(data)[i];
  const uint16_t raw = static_cast<const uint16_t*>(data)[i];
  return dtype == fcclFloat16 ? widenFp16(raw) : widenBf16(raw);
}
void setElement(fcclDataType_t dtype, void* data, size_t i, float value) {
  if (dtype == fcclFloat32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = dtype == fcclFloat16 ? narrowFp16(value) : narrowBf16(value);
  }
}

// One rank's buffers for one case.
struct Buffers {
  Bytes input, residual, weight, reduced, residualOut, normOut, quantOut, scaleOut;
  float scale = 0.75f;

  Buffers(const KernelCase& c, int rank, int call) {
    const auto count = static_cast<size_t>(c.rows * c.cols);
    const size_t bytes = count * dtypeBytes(c.dtype);
    input.resize(bytes);
    for (size_t i = 0; i < count; i++) setElement(c.dtype, input.data(), i, value(rank, call, i));
    reduced.assign(bytes, 0xcd);
    if (!c.norm) return;
    residual.resize(bytes);
    weight.resize(static_cast<size_t>(c.cols) * dtypeBytes(c.dtype));
    for (size_t i = 0; i < count; i++) setElement(c.dtype, residual.data(), i, value(100, call, i));
    for (size_t i = 0; i < static_cast<size_t>(c.cols); i++) setElement(c.dtype, weight.data(), i, value(200, call, i));
    residualOut.assign(bytes, 0xcd);
    normOut.assign(bytes, 0xcd);
    if (c.quant != QuantKind::kNone) quantOut.assign(count, 0xcd);
    if (c.quant == QuantKind::kNvfp4) {
      const int64_t paddedBlocks = (c.cols / 16 + 3) / 4 * 4;
      scaleOut.assign(static_cast<size_t>(scaleRows(fcclScaleSwizzled128x4, c.rows) * paddedBlocks), 0xcd);
    }
  }

  // Depends on rank and index without symmetry; now and then a zero of either sign or a subnormal.
  static float value(int rank, int call, size_t i) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 40503u +
                 static_cast<uint32_t>(call) * 977u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    if (h % 53 == 0) return (h & 64) != 0 ? -0.0f : 0.0f;
    if (h % 59 == 0) return (h & 64) != 0 ? -1e-40f : 1e-40f;
    return (static_cast<float>(h % 20011) - 9876.5f) / 4096.0f;
  }
};

RowArgs argsOf(const KernelCase& c, Buffers& b) {
  RowArgs a;
  a.input = b.input.data();
  a.reducedOut = c.reduced ? b.reduced.data() : nullptr;
  a.rows = c.rows;
  a.cols = c.cols;
  if (!c.norm) return a;
  a.residual = b.residual.data();
  a.weight = b.weight.data();
  a.residualOut = b.residualOut.data();
  a.normOut = b.normOut.data();
  a.quantOut = b.quantOut.data();
  a.scaleOut = b.scaleOut.data();
  a.quantScale = &b.scale;
  a.eps = 1e-5f;
  a.weightBias = 1.0f;
  a.quant = c.quant;
  a.scaleLayout = fcclScaleSwizzled128x4;
  return a;
}

// What every rank must hold afterwards, by scalar code in the documented order.
void expectOutputs(const KernelCase& c, const std::vector<std::unique_ptr<Buffers>>& ranks, Buffers& want) {
  for (int64_t row = 0; row < c.rows; row++) {
    std::vector<float> squares(64, 0.0f);
    const auto at = [&](int64_t col) { return static_cast<size_t>(row * c.cols + col); };
    for (int64_t col = 0; col < c.cols; col++) {
      float sum = 0;
      for (const auto& rank : ranks) sum += elementOf(c.dtype, rank->input.data(), at(col));
      setElement(c.dtype, want.reduced.data(), at(col), sum);
      if (!c.norm) continue;
      const float s = elementOf(c.dtype, want.reduced.data(), at(col));
      setElement(c.dtype, want.residualOut.data(), at(col), s + elementOf(c.dtype, want.residual.data(), at(col)));
      const float r = elementOf(c.dtype, want.residualOut.data(), at(col));
      volatile float square = r * r;
      squares[static_cast<size_t>(col % 64)] += square;
    }
    if (!c.norm) continue;
    for (int i = 0; i < 16; i++) {
      const auto k = static_cast<size_t>(i);
      squares[k] = (squares[k] + squares[k + 16]) + (squares[k + 32] + squares[k + 48]);
    }
    for (size_t half = 8; half >= 1; half /= 2) {
      for (size_t i = 0; i < half; i++) squares[i] += squares[i + half];
    }
    const float scale = 1.0f / std::sqrt(squares[0] / static_cast<float>(c.cols) + 1e-5f);
    for (int64_t col = 0; col < c.cols; col++) {
      const float r = elementOf(c.dtype, want.residualOut.data(), at(col));
      const float w = elementOf(c.dtype, want.weight.data(), static_cast<size_t>(col)) + 1.0f;
      volatile float scaled = r * scale;
      setElement(c.dtype, want.normOut.data(), at(col), scaled * w);
      if (c.quant == QuantKind::kFp8) {
        const float n = elementOf(c.dtype, want.normOut.data(), at(col));
        want.quantOut[at(col)] = e4m3FromFloat(n * (1.0f / want.scale));
      }
    }
    for (int64_t block = 0; c.quant == QuantKind::kNvfp4 && block < c.cols / 16; block++) {
      float amax = 0;
      for (int64_t j = 0; j < 16; j++) {
        amax = std::fmax(amax, std::fabs(elementOf(c.dtype, want.normOut.data(), at(block * 16 + j))));
      }
      const uint8_t code = nvfp4ScaleByte(want.scale, amax);
      want.scaleOut[static_cast<size_t>(scaleOffset(fcclScaleSwizzled128x4, row, block, c.cols / 16))] = code;
      for (int64_t j = 0; j < 16; j += 2) {
        const auto codeOf = [&](int64_t col) -> unsigned {
          const float n = elementOf(c.dtype, want.normOut.data(), at(col));
          return code == 0 ? 0u : e2m1FromFloat(n * nvfp4Multiplier(want.scale, code));
        };
        want.quantOut[at(block * 16 + j) / 2] =
            static_cast<uint8_t>(codeOf(block * 16 + j) | codeOf(block * 16 + j + 1) << 4);
      }
    }
  }
}

struct Delay {
  std::minstd_rand random;
  int most;
  static void step(void* context, const char*) {
    auto* self = static_cast<Delay*>(context);
    const unsigned draw = self->random();
    if (draw % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % static_cast<unsigned>(self->most)));
  }
};

std::string firstDifference(const char* what, const Bytes& want, const Bytes& got) {
  for (size_t i = 0; i < want.size(); i++) {
    if (want[i] == got[i]) continue;
    std::ostringstream text;
    text << what << " byte " << i << ": " << int(got[i]) << " instead of " << int(want[i]);
    return text.str();
  }
  return {};
}

std::string describe(const KernelCase& c) {
  std::ostringstream text;
  text << simdName(c.simd) << " " << dtypeName(c.dtype) << " protocol " << int(c.protocol) << " wire " << int(c.wire)
       << " ranks " << c.ranks << " [" << c.rows << ", " << c.cols << "] chunk " << c.shape.rowsPerChunk << " x "
       << c.shape.colsPerChunk << " ";
  return text.str();
}

// Memory that ends right before an inaccessible page and begins at most a page behind another.
class GuardedPages {
 public:
  explicit GuardedPages(size_t bytes)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), mapped_((bytes + page_ - 1) / page_ * page_ + 2 * page_) {
    void* made = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<char*>(made);
    char* end = mapping_ + mapped_ - page_;
    data_ = end - bytes;
    if (mprotect(mapping_, page_, PROT_NONE) != 0 || mprotect(end, page_, PROT_NONE) != 0) std::abort();
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  ~GuardedPages() { munmap(mapping_, mapped_); }
  char* data() const { return data_; }

 private:
  size_t page_;
  size_t mapped_;
  char* mapping_;
  char* data_;
};

// Memory of `bytes` bytes for each rank, zeroed. Kept for the next case of this size: fresh pages cost more than most
// cases.
std::vector<std::unique_ptr<GuardedPages>>& memoryOf(int ranks, size_t bytes) {
  static std::vector<std::unique_ptr<GuardedPages>> memory;
  static size_t each = 0;
  if (each != bytes) memory.clear();
  each = bytes;
  while (memory.size() < static_cast<size_t>(ranks)) memory.push_back(std::make_unique<GuardedPages>(bytes));
  for (int r = 0; r < ranks; r++) std::memset(memory[static_cast<size_t>(r)]->data(), 0, bytes);
  return memory;
}

constexpr char kCanary = 0x5c;
constexpr size_t kCanaryBytes = 256;

// Where the payload of each slot ends.
template <class F>
void forEachGap(const MemoryLayout& layout, F f) {
  for (int channel = 0; channel < kChannels; channel++) {
    for (uint32_t slot = 0; slot < kRingSlots; slot++) {
      f(layout.stagingOffset(channel, slot) + layout.slotBytes);
      for (int source = 0; source < layout.ranks; source++) {
        f(layout.lamportOffset(channel, source, slot) + layout.lamportSlotBytes);
      }
    }
  }
}

}  // namespace

std::string runKernel(const KernelCase& c, size_t slotBytes) {
  const MemoryLayout layout = makeLayout(c.ranks, slotBytes);
  const auto& memory = memoryOf(c.ranks, layout.totalBytes());
  std::vector<World> worlds(static_cast<size_t>(c.ranks));
  std::vector<Delay> delays(static_cast<size_t>(c.ranks));
  std::vector<TestHooks> hooks(static_cast<size_t>(c.ranks));
  for (int r = 0; r < c.ranks; r++) {
    const auto i = static_cast<size_t>(r);
    World& world = worlds[i];
    world.rank = r;
    world.ranks = c.ranks;
    world.layout = layout;
    for (int peer = 0; peer < c.ranks; peer++) world.memory.push_back(memory[static_cast<size_t>(peer)]->data());
    world.wait.pauses = 0;
    world.wait.timeout = std::chrono::seconds(50);
    world.rowScratch.resize(static_cast<size_t>(c.cols) * 4 + 128);
    delays[i] = Delay{std::minstd_rand(static_cast<unsigned>(r) * 7919u + 1u), c.delayMicroseconds};
    hooks[i].step = c.delayMicroseconds > 0 ? Delay::step : nullptr;
    hooks[i].context = &delays[i];
    world.hooks = &hooks[i];
    prepareMemory(world, c.firstSequence);
    forEachGap(layout, [&](size_t at) { std::memset(memory[i]->data() + at, kCanary, kCanaryBytes); });
  }
  const Kernel kernel =
      c.kernel != nullptr ? c.kernel : findKernel(c.simd, c.protocol, c.wire, c.dtype, fcclSum, c.norm, c.ranks);
  if (kernel == nullptr) return "no kernel";

  std::vector<std::vector<std::unique_ptr<Buffers>>> calls;
  for (int call = 0; call < c.calls; call++) {
    calls.emplace_back();
    for (int r = 0; r < c.ranks; r++) calls.back().push_back(std::make_unique<Buffers>(c, r, call));
  }
  std::vector<std::vector<ptrdiff_t>> inputDeltas(static_cast<size_t>(c.calls * c.ranks));
  std::vector<std::vector<ptrdiff_t>> outputDeltas(static_cast<size_t>(c.calls * c.ranks));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < c.ranks; r++) {
      threads.emplace_back([&, r] {
        for (int call = 0; call < c.calls; call++) {
          auto& buffers = calls[static_cast<size_t>(call)];
          Buffers& own = *buffers[static_cast<size_t>(r)];
          const size_t at = static_cast<size_t>(call) * static_cast<size_t>(c.ranks) + static_cast<size_t>(r);
          auto& in = inputDeltas[at];
          auto& out = outputDeltas[at];
          for (const auto& peer : buffers) {
            in.push_back(reinterpret_cast<char*>(peer->input.data()) - reinterpret_cast<char*>(own.input.data()));
            out.push_back(reinterpret_cast<char*>(peer->reduced.data()) - reinterpret_cast<char*>(own.reduced.data()));
          }
          Call what;
          what.rows = argsOf(c, own);
          what.shape = c.shape;
          what.dtype = c.dtype;
          what.windows = WindowDeltas{in.data(), out.data()};
          kernel(worlds[static_cast<size_t>(r)], what);
        }
      });
    }
  }
  for (int r = 0; r < c.ranks; r++) {
    bool whole = true;
    const char* own = memory[static_cast<size_t>(r)]->data();
    forEachGap(layout, [&](size_t at) {
      whole = whole && std::all_of(own + at, own + at + kCanaryBytes, [](char byte) { return byte == kCanary; });
    });
    if (!whole) return describe(c) + "something wrote behind a slot of rank " + std::to_string(r);
  }
  for (int call = 0; call < c.calls; call++) {
    auto& buffers = calls[static_cast<size_t>(call)];
    Buffers want(c, 0, call);
    std::fill(want.scaleOut.begin(), want.scaleOut.end(), uint8_t{0});
    expectOutputs(c, buffers, want);
    if (!c.reduced) want.reduced.clear();
    for (int r = 0; r < c.ranks; r++) {
      const Buffers& got = *buffers[static_cast<size_t>(r)];
      std::ostringstream where;
      where << describe(c) << "call " << call << " rank " << r << ": ";
      if (worlds[static_cast<size_t>(r)].failure.kind != FailureKind::kNone)
        return where.str() + "failed, kind " + std::to_string(int(worlds[static_cast<size_t>(r)].failure.kind)) +
               " peer " + std::to_string(worlds[static_cast<size_t>(r)].failure.rank);
      for (const auto& [name, a, b] :
           {std::tuple("reduced", &want.reduced, &got.reduced),
            std::tuple("residual", &want.residualOut, &got.residualOut),
            std::tuple("norm", &want.normOut, &got.normOut), std::tuple("quant", &want.quantOut, &got.quantOut),
            std::tuple("scale", &want.scaleOut, &got.scaleOut)}) {
        const std::string difference = firstDifference(name, *a, *b);
        if (!difference.empty()) return where.str() + difference;
      }
    }
  }
  return {};
}

}  // namespace fccl::test
