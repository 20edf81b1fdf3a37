// Whether the tests see what they are there to see: protocols and outputs with the shards of two ranks mixed up must be
// found wrong. Data that is equal on all ranks, or in all shards, would let them pass.
#include <algorithm>
#include <vector>

#include "kernels/host/float_kernels.h"
#include "kernels/host/simd_generic.h"
#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/kernel_case.h"

using namespace fccl;
using namespace fccl::host;
using namespace fccl::test;

namespace {

enum class Mutation {
  kNone,
  kPartsOfOthersSwapped,    // where the shards of two other owners lie is mixed up
  kNeighboursShardReduced,  // a rank reduces the shard of the rank before it, as that one does
  kGatheredFromNeighbour,   // an owner's shard is taken from the slot of another
};

// TWOSHOT's team with one thing wrong. All it has of its own hides what HostTeam has.
template <Mutation mutation, Wire wire>
class MutatedTeam : public HostTeam<Fp32, Generic, wire, 0> {
 public:
  using Base = HostTeam<Fp32, Generic, wire, 0>;
  using Base::Base;

  Chunk part(const RowArgs& a, int64_t i, int owner) const {
    const int ranks = this->ranks();
    if (mutation == Mutation::kPartsOfOthersSwapped && owner != this->rank() && this->rank() == ranks - 1) {
      // The sizes stay, or nothing would fit.
      Chunk swapped = Base::part(a, i, owner == 0 ? 1 : owner == 1 ? 0 : owner);
      const Chunk own = Base::part(a, i, owner);
      swapped.rows = own.rows;
      swapped.cols = own.cols;
      return swapped;
    }
    if (mutation == Mutation::kNeighboursShardReduced && owner == this->rank() && owner > 0) {
      return Base::part(a, i, owner - 1);
    }
    return Base::part(a, i, owner);
  }

  void copyGathered(const RowArgs& a, typename Base::From& from, int owner, const Chunk& part, int64_t r) const {
    const int other = (owner + 1) % this->ranks();
    const bool wrong = mutation == Mutation::kGatheredFromNeighbour && other != this->rank();
    Base::copyGathered(a, from, wrong ? other : owner, part, r);
  }
};

template <Mutation mutation, Wire wire, bool norm>
void mutatedTwoshot(World& world, const Call& call) {
  MutatedTeam<mutation, wire> team(world, call);
  twoshot<RuntimePattern<norm>>(team, call.rows);
}

// TWOSHOT over 4 ranks, shards of equal size, as a plain call (shards are columns) or as rows.
template <Mutation mutation, Wire wire, bool norm>
std::string runMutated() {
  KernelCase c;
  c.dtype = fcclFloat32;
  c.protocol = Protocol::kTwoshot;
  c.wire = wire;
  c.ranks = 4;
  c.norm = norm;
  c.rows = norm ? 8 : 1;
  c.cols = norm ? 64 : 1024;
  c.shape.colsPerChunk = norm ? 64 : 512;
  c.kernel = mutatedTwoshot<mutation, wire, norm>;
  return runKernel(c);
}

}  // namespace

TEST_CASE("mutations: a protocol that mixes up shards does not pass", "[mutations]") {
  // The team as such is right.
  CHECK(runMutated<Mutation::kNone, Wire::kFlags, false>() == "");
  CHECK(runMutated<Mutation::kNone, Wire::kFlags, true>() == "");
  CHECK(runMutated<Mutation::kNone, Wire::kLamport, false>() == "");
  CHECK(runMutated<Mutation::kPartsOfOthersSwapped, Wire::kFlags, false>() != "");
  CHECK(runMutated<Mutation::kPartsOfOthersSwapped, Wire::kFlags, true>() != "");
  CHECK(runMutated<Mutation::kPartsOfOthersSwapped, Wire::kLamport, false>() != "");
  CHECK(runMutated<Mutation::kNeighboursShardReduced, Wire::kFlags, false>() != "");
  CHECK(runMutated<Mutation::kNeighboursShardReduced, Wire::kFlags, true>() != "");
  CHECK(runMutated<Mutation::kGatheredFromNeighbour, Wire::kFlags, false>() != "");
  CHECK(runMutated<Mutation::kGatheredFromNeighbour, Wire::kFlags, true>() != "");
}

TEST_CASE("mutations: outputs with two shards swapped, or a rank counted twice, do not pass", "[mutations]") {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      INFO(ranks << " ranks, " << patternName(pattern));
      FusedCase asked;
      asked.pattern = pattern;
      asked.tokens = 2L * ranks;
      asked.hidden = 64;
      asked.reducedOut = true;
      FusedProblem problem(asked, ranks);
      RankGroup group(ranks, testConfig(4096));
      const FusedOutputs right = runFused(group, problem);
      // Rows of two owners change places, in one output at a time. Scales are in a layout of their own; codes are not.
      const size_t rows = static_cast<size_t>(asked.tokens);
      for (Bytes FusedOutputs::*output :
           {&FusedOutputs::reduced, &FusedOutputs::residual, &FusedOutputs::norm, &FusedOutputs::quant}) {
        FusedOutputs mutated = right;
        Bytes& bytes = mutated.*output;
        const bool checked =
            output == &FusedOutputs::quant || (output == &FusedOutputs::norm && traits(pattern).normOut) ||
            output == &FusedOutputs::reduced || (output == &FusedOutputs::residual && traits(pattern).residual);
        if (bytes.empty() || !checked) continue;
        const size_t row = bytes.size() / rows;
        std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(row),
                         bytes.begin() + static_cast<ptrdiff_t>(2 * row));
        CHECK(problem.check(pattern, mutated, mutated.norm) != "");
      }
      // What rank 1 gave is there twice, what rank 0 gave is not.
      FusedProblem twice(asked, ranks);
      twice.inputs[0] = twice.inputs[1];
      CHECK(twice.check(pattern, right, right.norm) != "");
    }
  }
}
