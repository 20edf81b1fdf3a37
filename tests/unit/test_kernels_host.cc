// The host kernels by themselves: every protocol, wire, SIMD target and data type over threads and plain memory, with
// random delays at each step of the protocol, against a scalar computation of the documented order that must match bit
// for bit.
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/formats.h"
#include "kernels/host/host_kernels.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

using namespace fccl;
using namespace fccl::host;

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

struct Case {
  fcclDataType_t dtype = fcclBfloat16;
  int ranks = 2;
  int64_t rows = 1;
  int64_t cols = 64;
  bool norm = false;
  bool reduced = true;  // there is a reducedOut
  QuantKind quant = QuantKind::kNone;
  Protocol protocol = Protocol::kOneshot;
  Wire wire = Wire::kFlags;
  Simd simd = Simd::kGeneric;
  Shape shape;
  int calls = 3;
  uint32_t firstSequence = 0;
  int delayMicroseconds = 0;
};

// One rank's buffers for one case.
struct Buffers {
  Bytes input, residual, weight, reduced, residualOut, normOut, quantOut, scaleOut;
  float scale = 0.75f;

  Buffers(const Case& c, int rank, int call) {
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

RowArgs argsOf(const Case& c, Buffers& b) {
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
void expectOutputs(const Case& c, const std::vector<std::unique_ptr<Buffers>>& ranks, Buffers& want) {
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

// Empty, or what went wrong.
std::string run(const Case& c, size_t slotBytes = 8192) {
  const MemoryLayout layout = makeLayout(c.ranks, slotBytes);
  std::vector<std::unique_ptr<char, void (*)(void*)>> memory;
  for (int r = 0; r < c.ranks; r++) {
    memory.emplace_back(static_cast<char*>(std::aligned_alloc(4096, layout.totalBytes())), std::free);
    std::memset(memory.back().get(), 0, layout.totalBytes());
  }
  std::vector<World> worlds(static_cast<size_t>(c.ranks));
  std::vector<Delay> delays(static_cast<size_t>(c.ranks));
  std::vector<TestHooks> hooks(static_cast<size_t>(c.ranks));
  for (int r = 0; r < c.ranks; r++) {
    const auto i = static_cast<size_t>(r);
    World& world = worlds[i];
    world.rank = r;
    world.ranks = c.ranks;
    world.layout = layout;
    for (const auto& m : memory) world.memory.push_back(m.get());
    world.wait.pauses = 0;
    world.wait.timeout = std::chrono::seconds(50);
    world.rowScratch.resize(static_cast<size_t>(c.cols) * 4 + 128);
    delays[i] = Delay{std::minstd_rand(static_cast<unsigned>(r) * 7919u + 1u), c.delayMicroseconds};
    hooks[i].step = c.delayMicroseconds > 0 ? Delay::step : nullptr;
    hooks[i].context = &delays[i];
    world.hooks = &hooks[i];
    prepareMemory(world, c.firstSequence);
  }
  const Kernel kernel = findKernel(c.simd, c.protocol, c.wire, c.dtype, fcclSum, c.norm, c.ranks);
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
          auto& in = inputDeltas[static_cast<size_t>(call * c.ranks + r)];
          auto& out = outputDeltas[static_cast<size_t>(call * c.ranks + r)];
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
  for (int call = 0; call < c.calls; call++) {
    auto& buffers = calls[static_cast<size_t>(call)];
    Buffers want(c, 0, call);
    std::fill(want.scaleOut.begin(), want.scaleOut.end(), uint8_t{0});
    expectOutputs(c, buffers, want);
    if (!c.reduced) want.reduced.clear();
    for (int r = 0; r < c.ranks; r++) {
      const Buffers& got = *buffers[static_cast<size_t>(r)];
      std::ostringstream where;
      where << simdName(c.simd) << " " << dtypeName(c.dtype) << " protocol " << int(c.protocol) << " wire "
            << int(c.wire) << " ranks " << c.ranks << " [" << c.rows << ", " << c.cols << "] chunk "
            << c.shape.rowsPerChunk << " x " << c.shape.colsPerChunk << " call " << call << " rank " << r << ": ";
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

std::vector<Simd> availableSimd() {
  std::vector<Simd> all;
  for (Simd simd : {Simd::kGeneric, Simd::kAvx2, Simd::kAvx512}) {
    if (simdAvailable(simd)) all.push_back(simd);
  }
  return all;
}

constexpr fcclDataType_t kFloats[] = {fcclFloat32, fcclBfloat16, fcclFloat16};

}  // namespace

TEST_CASE("host kernels: plain sums match the scalar order on every target, protocol and wire") {
  for (Simd simd : availableSimd()) {
    for (fcclDataType_t dtype : kFloats) {
      for (Protocol protocol :
           {Protocol::kOneshot, Protocol::kTwoshot, Protocol::kWindowOneshot, Protocol::kWindowTwoshot}) {
        for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
          if (wire == Wire::kLamport && protocol != Protocol::kOneshot && protocol != Protocol::kTwoshot) continue;
          for (int ranks : {1, 2, 3, 5}) {
            for (int64_t cols : {1, 7, 63, 64, 65, 1000, 4099}) {
              Case c;
              c.simd = simd;
              c.dtype = dtype;
              c.protocol = protocol;
              c.wire = wire;
              c.ranks = ranks;
              c.cols = cols;
              c.shape.colsPerChunk = 256;
              CHECK(run(c) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("host kernels: fused rows match the scalar order on every target, protocol and wire") {
  for (Simd simd : availableSimd()) {
    for (fcclDataType_t dtype : kFloats) {
      for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot, Protocol::kWindowOneshot}) {
        for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
          if (wire == Wire::kLamport && protocol == Protocol::kWindowOneshot) continue;
          for (int ranks : {2, 3}) {
            for (const auto& [rows, cols, rowsPerChunk] :
                 {std::tuple<int64_t, int64_t, int64_t>(3, 7, 1), {5, 96, 2}, {13, 80, 4}, {4, 720, 1}}) {
              for (QuantKind quant : {QuantKind::kNone, QuantKind::kFp8, QuantKind::kNvfp4}) {
                if (quant == QuantKind::kNvfp4 && cols % 16 != 0) continue;
                Case c;
                c.simd = simd;
                c.dtype = dtype;
                c.protocol = protocol;
                c.wire = wire;
                c.ranks = ranks;
                c.rows = rows;
                c.cols = cols;
                c.norm = true;
                c.quant = quant;
                c.calls = 2;
                c.shape.rowsPerChunk = protocol == Protocol::kTwoshot ? 1 : rowsPerChunk;
                c.shape.colsPerChunk = cols;
                CHECK(run(c, 16384) == "");
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("host kernels: the usual patterns, which have kernels of their own, through and past the caches") {
  for (Simd simd : availableSimd()) {
    for (fcclDataType_t dtype : kFloats) {
      for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot}) {
        for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
          for (int streamed = 0; streamed < 4; streamed++) {
            if (wire == Wire::kLamport && (streamed & 1) != 0) continue;
            for (const auto& [rows, cols, rowsPerChunk] :
                 {std::tuple<int64_t, int64_t, int64_t>(3, 7, 1), {9, 192, 2}}) {
              Case c;
              c.simd = simd;
              c.dtype = dtype;
              c.protocol = protocol;
              c.wire = wire;
              c.rows = rows;
              c.cols = cols;
              c.norm = true;
              c.reduced = false;
              c.shape.rowsPerChunk = protocol == Protocol::kTwoshot ? 1 : rowsPerChunk;
              c.shape.colsPerChunk = cols;
              c.shape.streamStaging = (streamed & 1) != 0;
              c.shape.streamOutput = (streamed & 2) != 0 && cols % 64 == 0;
              CHECK(run(c, 16384) == "");
              c.reduced = true;
              CHECK(run(c, 16384) == "");
              c.norm = false;
              c.rows = 1;
              c.cols = rows * cols;
              c.shape.rowsPerChunk = 1;
              c.shape.colsPerChunk = 256;
              CHECK(run(c, 16384) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("host kernels: a row longer than a slot goes through in pieces, with one norm") {
  for (Simd simd : availableSimd()) {
    for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
      Case c;
      c.simd = simd;
      c.wire = wire;
      c.ranks = 3;
      c.rows = 3;
      c.cols = 1000;
      c.norm = true;
      c.shape.colsPerChunk = 192;
      CHECK(run(c) == "");
    }
  }
}

TEST_CASE("host kernels: random delays at every protocol step, 2 to 72 ranks") {
  for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot}) {
    for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
      for (int ranks : {2, 4, 8, 72}) {
        Case c;
        c.simd = bestSimd();
        c.protocol = protocol;
        c.wire = wire;
        c.ranks = ranks;
        c.rows = ranks == 72 ? 80 : 40;
        c.cols = ranks == 72 ? 16 : 48;
        c.norm = true;
        c.shape.colsPerChunk = c.cols;
        c.delayMicroseconds = 300;
        if (test::slowness() > 1) c.calls = ranks == 72 ? 1 : 2;  // delays and polls of 72 threads take minutes there
        CHECK(run(c) == "");
        c.norm = false;
        c.rows = 1;
        c.cols = test::slowness() > 1 ? 3000 : 9000;
        // A chunk fits a slot; Lamport slots are small with many ranks, and TWOSHOT puts only a part of a chunk into
        // each.
        c.shape.colsPerChunk = protocol == Protocol::kOneshot ? 1024 : 64 * ranks;
        CHECK(run(c, 64 * 1024) == "");
      }
    }
  }
}

TEST_CASE("host kernels: sequence numbers wrap") {
  for (uint32_t first : {0x7ffffff0u, 0xfffffff0u, 0xffffffffu}) {
    for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot, Protocol::kWindowTwoshot}) {
      for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
        if (wire == Wire::kLamport && protocol == Protocol::kWindowTwoshot) continue;
        Case c;
        c.simd = bestSimd();
        c.protocol = protocol;
        c.wire = wire;
        c.cols = 300;
        c.shape.colsPerChunk = 128;
        c.calls = 64;
        c.firstSequence = first;
        CHECK(run(c) == "");
      }
    }
  }
}

TEST_CASE(
    "number formats: every e4m3 and e2m1 code is its own rounding, and the vector forms agree with the scalar ones") {
  for (unsigned code = 0; code < 256; code++) {
    const float value = floatFromE4m3(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
    } else {
      CHECK(unsigned(e4m3FromFloat(value)) == code);
    }
  }
  for (uint32_t half = 0; half < 65536; half++) {
    const auto raw = static_cast<uint16_t>(half);
    if (!std::isnan(widenBf16(raw))) REQUIRE(narrowBf16(widenBf16(raw)) == raw);
    if (!std::isnan(widenFp16(raw))) REQUIRE(narrowFp16(widenFp16(raw)) == raw);
  }
}
