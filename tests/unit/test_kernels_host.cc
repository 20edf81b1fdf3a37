// The host kernels by themselves: every protocol, wire, SIMD target and data type.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/formats.h"
#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_case.h"
#include "tests/support/thread_ranks.h"

using namespace fccl;
using namespace fccl::host;
using namespace fccl::test;

namespace {

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
              KernelCase c;
              c.simd = simd;
              c.dtype = dtype;
              c.protocol = protocol;
              c.wire = wire;
              c.ranks = ranks;
              c.cols = cols;
              c.shape.colsPerChunk = 256;
              CHECK(runKernel(c) == "");
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
                KernelCase c;
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
                CHECK(runKernel(c, 16384) == "");
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
              KernelCase c;
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
              CHECK(runKernel(c, 16384) == "");
              c.reduced = true;
              CHECK(runKernel(c, 16384) == "");
              c.norm = false;
              c.rows = 1;
              c.cols = rows * cols;
              c.shape.rowsPerChunk = 1;
              c.shape.colsPerChunk = 256;
              CHECK(runKernel(c, 16384) == "");
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
      KernelCase c;
      c.simd = simd;
      c.wire = wire;
      c.ranks = 3;
      c.rows = 3;
      c.cols = 1000;
      c.norm = true;
      c.shape.colsPerChunk = 192;
      CHECK(runKernel(c) == "");
    }
  }
}

TEST_CASE("host kernels: flags and slots lie apart, for every number of ranks and size of slots") {
  for (int ranks : {1, 2, 3, 7, 8, 72, 255, kMaxRanks}) {
    for (size_t slotBytes : {size_t{1}, size_t{4096}, size_t{5000}, size_t{256} << 10, size_t{1} << 30}) {
      INFO(ranks << " ranks, slots of " << slotBytes);
      const MemoryLayout layout = makeLayout(ranks, slotBytes);
      CHECK(layout.slotBytes >= slotBytes);
      size_t free = sizeof(Control);
      size_t apart = 0;
      size_t aligned = 0;
      size_t slots = 0;
      const auto place = [&](size_t at, size_t bytes) {
        slots++;
        apart += at >= free;
        aligned += at % 64 == 0 && bytes % 4096 == 0;
        free = at + bytes;
      };
      for (int channel = 0; channel < kChannels; channel++) {
        for (uint32_t slot = 0; slot < kRingSlots; slot++) place(layout.stagingOffset(channel, slot), layout.slotBytes);
      }
      for (int channel = 0; channel < kChannels; channel++) {
        for (int source = 0; source < ranks; source++) {
          for (uint32_t slot = 0; slot < kRingSlots; slot++) {
            place(layout.lamportOffset(channel, source, slot), layout.lamportSlotBytes);
          }
        }
      }
      CHECK(apart == slots);
      CHECK(aligned == slots);
      CHECK(free <= layout.totalBytes());
    }
  }
}

TEST_CASE("host kernels: slots filled to their last byte") {
  constexpr size_t kSlot = 8192;
  for (Simd simd : availableSimd()) {
    for (fcclDataType_t dtype : kFloats) {
      const auto fit = static_cast<int64_t>(kSlot / dtypeBytes(dtype));
      for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot}) {
        for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
          for (int ranks : {2, 4}) {
            KernelCase c;
            c.simd = simd;
            c.dtype = dtype;
            c.protocol = protocol;
            c.wire = wire;
            c.ranks = ranks;
            // All slots of the ring, and back to the first. A Lamport slot of TWOSHOT holds one owner's share.
            c.shape.colsPerChunk = protocol == Protocol::kTwoshot && wire == Wire::kLamport ? fit * ranks : fit;
            c.cols = 6 * c.shape.colsPerChunk;
            CHECK(runKernel(c, kSlot) == "");
            // Rows of 64 elements. TWOSHOT's gather slot holds three outputs of a share, or the sums.
            c.norm = true;
            c.cols = 64;
            c.rows = 6 * fit / 64;
            c.shape.colsPerChunk = c.cols;
            c.shape.rowsPerChunk = fit / 64;
            if (protocol == Protocol::kTwoshot && wire == Wire::kFlags) {
              c.shape.rowsPerChunk = fit / 64 / std::max(ranks, 3);
            }
            CHECK(runKernel(c, kSlot) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("host kernels: random delays at every protocol step, 2 to 72 ranks") {
  for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot}) {
    for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
      for (int ranks : {2, 4, 8, 72}) {
        KernelCase c;
        c.simd = bestSimd();
        c.protocol = protocol;
        c.wire = wire;
        c.ranks = ranks;
        c.rows = ranks == 72 ? 80 : 40;
        c.cols = ranks == 72 ? 16 : 48;
        c.norm = true;
        c.shape.colsPerChunk = c.cols;
        c.delayMicroseconds = 300;
        if (slowness() > 1) c.calls = ranks == 72 ? 1 : 2;  // delays and polls of 72 threads take minutes there
        CHECK(runKernel(c) == "");
        c.norm = false;
        c.rows = 1;
        c.cols = slowness() > 1 ? 3000 : 9000;
        // A chunk fits a slot; Lamport slots are small with many ranks, and TWOSHOT puts only a part of a chunk into
        // each.
        c.shape.colsPerChunk = protocol == Protocol::kOneshot ? 1024 : 64 * ranks;
        CHECK(runKernel(c, size_t{64} << 10) == "");
      }
    }
  }
}

TEST_CASE("host kernels: sequence numbers wrap") {
  for (uint32_t first : {0x7ffffff0u, 0xfffffff0u, 0xffffffffu}) {
    for (Protocol protocol : {Protocol::kOneshot, Protocol::kTwoshot, Protocol::kWindowTwoshot}) {
      for (Wire wire : {Wire::kFlags, Wire::kLamport}) {
        if (wire == Wire::kLamport && protocol == Protocol::kWindowTwoshot) continue;
        KernelCase c;
        c.simd = bestSimd();
        c.protocol = protocol;
        c.wire = wire;
        c.cols = 300;
        c.shape.colsPerChunk = 128;
        c.calls = 64;
        c.firstSequence = first;
        CHECK(runKernel(c) == "");
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

TEST_CASE("host: the time of a flag is measured again and again, between calls, and is the same on all ranks") {
  for (const int ranks : {1, 2, 3, 9}) {
    INFO(ranks << " ranks");
    RankGroup group(ranks);
    std::vector<std::vector<double>> times(static_cast<size_t>(ranks));
    group.run("flags between calls", [&](Rank& rank) {
      for (int turn = 0; turn < 3; turn++) {
        const double time = measureFlagNanoseconds(testing::communicatorOf(rank.comm).world());
        times[static_cast<size_t>(rank.rank)].push_back(time);
        std::vector<int32_t> sums(1000, rank.rank + turn);
        rank.ok(fcclAllReduce(sums.data(), sums.data(), sums.size(), fcclInt32, fcclSum, rank.comm, nullptr), "a sum");
        const int32_t wanted = ranks * turn + ranks * (ranks - 1) / 2;
        rank.expect(std::ranges::count(sums, wanted) == 1000, "a sum after flags were timed");
      }
    });
    for (const std::vector<double>& mine : times) {
      CHECK(mine == times[0]);
      for (const double time : mine) CHECK((ranks == 1 ? time == 0 : time > 1 && time < 1e8));
    }
  }
}
