// Communicators on a GPU through the C API, their ranks threads that share it: results, shapes, windows, and what is
// refused.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/gpu/device_ranks.h"
#include "tests/support/descriptors.h"
#include "tests/support/scoped_variable.h"

using namespace fccl::test;

namespace {

constexpr fcclDataType_t kTypes[] = {fcclBfloat16, fcclFloat16, fcclFloat32};
constexpr fcclStrategy_t kStrategies[] = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot,
                                          fcclStrategyMinLatency};

FusedCase caseOf(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden, uint64_t seed) {
  return fusedCase(pattern, dtype, tokens, hidden, kStrategies[seed % std::size(kStrategies)], seed);
}

}  // namespace

TEST_CASE("CUDA communicator: every pattern and type on 1, 2, 3, 4 and 8 ranks of one GPU") {
  FCCL_NEED_GPUS(1);
  uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CudaRanks cuda(ranks);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const fcclDataType_t dtype : kTypes) {
        for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>(1, 64), {3, 96}, {13, 2880}, {2, 8192}}) {
          FusedCase asked = caseOf(pattern, dtype, tokens, hidden, ++seed);
          asked.reducedOut = seed % 3 == 0;
          asked.fp32Weight = seed % 5 == 0;
          asked.weightBias = seed % 7 == 0 ? 1.0f : 0.0f;
          asked.layout = static_cast<fcclScaleLayout_t>(seed % 3);
          cuda.run(asked);
        }
      }
    }
  }
}

TEST_CASE("CUDA communicator: fcclAllReduce of any number of elements") {
  FCCL_NEED_GPUS(1);
  for (const int ranks : {1, 2, 5}) {
    CudaRanks cuda(ranks);
    uint64_t seed = 0;
    for (const size_t count : {1, 7, 64, 1000, 8192, 100'003, 1'048'576}) {
      for (const fcclDataType_t dtype : kTypes) {
        ++seed;
        cuda.group().run("all-reduce", [&](Rank& rank) {
          const std::string wrong =
              allReduceOnDevice(cuda.device(rank.rank), rank.comm, rank.rank, ranks, dtype, count, seed);
          rank.expect(wrong.empty(), wrong);
        });
      }
    }
  }
}

TEST_CASE("CUDA communicator: both ways to share memory") {
  FCCL_NEED_GPUS(1);
  for (const char* way : {"vmm", "ipc"}) {
    INFO(way);
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    CudaRanks cuda(4);
    cuda.run(caseOf(fcclPatternResidualRmsNormOutQuantFp8, fcclBfloat16, 7, 2880, 3));
  }
}

TEST_CASE("CUDA communicator: in place, empty calls, and NaN, Inf, -0 and subnormals") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(3);
  FusedCase asked = caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 22, 96, 5);
  asked.residualInPlace = true;
  asked.normInPlace = true;
  cuda.run(asked);
  asked = caseOf(fcclPatternAllReduce, fcclFloat16, 22, 96, 6);
  asked.reducedInPlace = true;
  asked.data = DataKind::kSpecial;
  cuda.run(asked);
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    asked = caseOf(pattern, fcclBfloat16, 22, 96, 7);
    asked.data = DataKind::kSpecial;
    cuda.run(asked);
  }
  cuda.group().run("empty", [&](Rank& rank) {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternResidualRmsNorm;
    args.hidden = 64;
    rank.ok(fcclAllReduceFused(&args, rank.comm, nullptr), "no tokens");
    rank.ok(fcclAllReduce(nullptr, nullptr, 0, fcclFloat32, fcclSum, rank.comm, nullptr), "no elements");
    rank.expect(cudaGetLastError() == cudaSuccess, "the empty call left a CUDA error");
  });
  cuda.run(caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 5, 64, 8));
}

TEST_CASE("CUDA communicator: a row gives the same bits whatever stands beside it, in whichever strategy") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(4);
  FusedCase asked = caseOf(fcclPatternResidualRmsNormOutQuantFp8, fcclBfloat16, 1, 4096, 4);
  FusedProblem one(asked, 4);
  asked.strategy = fcclStrategyOneshot;
  const FusedOutputs alone = cuda.run(one);
  for (const int64_t tokens : {2, 33, 129}) {
    for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
      asked.tokens = tokens;
      asked.strategy = strategy;
      FusedProblem many(asked, 4);
      for (size_t r = 0; r < 4; ++r) std::copy(one.inputs[r].begin(), one.inputs[r].end(), many.inputs[r].begin());
      std::copy(one.residual.begin(), one.residual.end(), many.residual.begin());
      many.weight = one.weight;
      const FusedOutputs all = cuda.run(many);
      CHECK(std::equal(alone.norm.begin(), alone.norm.end(), all.norm.begin()));
      CHECK(std::equal(alone.quant.begin(), alone.quant.end(), all.quant.begin()));
    }
  }
}

TEST_CASE("CUDA communicator: a call beyond the staging areas runs in parts") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.cudaWorkspaceBytes = 5 << 18;  // 160 rows of 1024 columns
  CudaRanks cuda(2, config);
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclScaleLayout_t layout : {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear}) {
      if (traits(pattern).quant != Quant::kNvfp4 && layout != fcclScaleLinear) continue;
      FusedCase asked = caseOf(pattern, fcclBfloat16, 300, 1024, 11);
      asked.layout = layout;
      cuda.run(asked);
    }
  }
  config.cudaWorkspaceBytes = 1 << 20;
  CudaRanks small(2, config);
  small.run(caseOf(fcclPatternResidualRmsNormQuantFp8, fcclBfloat16, 70, 4096, 12));
  small.run(caseOf(fcclPatternResidualRmsNormQuantNvfp4, fcclBfloat16, 140, 4096, 13));
  small.group().run("a row that does not fit", [&](Rank& rank) {
    RankDevice& device = small.device(rank.rank);
    device.reset();
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternRmsNorm;
    args.tokens = 1;
    args.hidden = 1 << 20;
    args.input = device.take(2 << 20);
    args.normOut = device.take(2 << 20);
    args.weight = device.take(2 << 20);
    rank.fails(fcclAllReduceFused(&args, rank.comm, device.stream()), fcclInvalidArgument, "FCCL_CUDA_WORKSPACE_BYTES",
               "a row of 2 MiB in a workspace of 1 MiB");
  });
}

TEST_CASE("CUDA communicator: two of them on two streams, a third made and destroyed in between") {
  FCCL_NEED_GPUS(1);
  CudaRanks first(2);
  CudaRanks second(2);
  for (uint64_t round = 0; round < 20; ++round) {
    first.group().run("two communicators", [&](Rank& rank) {
      const auto go = [&](CudaRanks& cuda, size_t count) {
        const std::string wrong = allReduceOnDevice(cuda.device(rank.rank), cuda.group().comm(rank.rank), rank.rank, 2,
                                                    fcclBfloat16, count, round);
        rank.expect(wrong.empty(), wrong);
      };
      go(first, 1000 + round);
      go(second, 70'000);
    });
    if (round % 5 == 0) CudaRanks third(2);
  }
}

TEST_CASE("CUDA communicator: creation and destruction leave no GPU memory, descriptors or mappings behind") {
  FCCL_NEED_GPUS(1);
  for (const char* way : {"vmm", "ipc"}) {
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    size_t freeBefore = 0;
    size_t descriptorsBefore = 0;
    size_t total = 0;
    for (int round = 0; round < 12; ++round) {
      {
        RankGroup group(3, cudaConfig());
        if (round % 2 == 0) {
          group.run("a window", [&](Rank& rank) {
            void* block = nullptr;
            fcclWindow_t window = nullptr;
            rank.ok(fcclMemAllocOn(&block, 3 << 20, fcclDeviceCuda), "fcclMemAllocOn");
            rank.ok(fcclCommWindowRegister(rank.comm, block, 3 << 20, &window, 0), "fcclCommWindowRegister");
            rank.ok(fcclCommWindowDeregister(rank.comm, window), "fcclCommWindowDeregister");
            rank.ok(fcclMemFree(block), "fcclMemFree");
          });
        }
      }
      size_t free = 0;
      REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
      INFO(way << " round " << round);
      if (round == 3) {
        freeBefore = free;
        descriptorsBefore = openDescriptors();
      }
      if (round > 3) {
        CHECK(free == freeBefore);
        CHECK(openDescriptors() == descriptorsBefore);
      }
    }
  }
}

TEST_CASE("CUDA communicator: ranks on one GPU are refused unless they are allowed to be") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.allowSharedDevice = 0;
  config.cudaDevice = 0;
  std::vector<fcclComm_t> comms;
  std::vector<fcclResult_t> results;
  std::vector<std::string> errors;
  initRanks(3, config, &comms, &results, &errors);
  for (size_t r = 0; r < 3; ++r) {
    INFO(errors[r]);
    CHECK(results[r] == fcclInvalidUsage);
    CHECK(comms[r] == nullptr);
    for (const char* word : {"Rank 0", "rank 1", "same GPU", "allowSharedDevice", "GPU-"}) {
      CHECK(errors[r].find(word) != std::string::npos);
    }
  }
  config.cudaDevice = 4711;
  initRanks(1, config, &comms, &results, &errors);
  CHECK(results[0] == fcclInvalidArgument);
  CHECK(errors[0].find("4711") != std::string::npos);
}

TEST_CASE("CUDA communicator: what is not there yet, and what is wrong, is said before anything is enqueued") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.checkCalls = 1;
  CudaRanks cuda(2, config);
  int device = -7;
  REQUIRE(fcclCommDevice(cuda.group().comm(0), &device) == fcclSuccess);
  CHECK(device == 0);
  cuda.group().run("refused", [&](Rank& rank) {
    RankDevice& mine = cuda.device(rank.rank);
    mine.reset();
    void* const data = mine.take(4096);
    const auto all = [&](size_t count, fcclDataType_t dtype, fcclRedOp_t op) {
      return fcclAllReduce(data, data, count, dtype, op, rank.comm, mine.stream());
    };
    rank.fails(all(5, fcclInt32, fcclSum), fcclInvalidArgument, "not on CUDA yet|int32", "integers");
    rank.fails(all(5, fcclFloat32, fcclMax), fcclInvalidArgument, "not on CUDA yet", "max");
    std::vector<float> host(64);
    rank.fails(fcclAllReduce(host.data(), data, 64, fcclFloat32, fcclSum, rank.comm, mine.stream()),
               fcclInvalidArgument, "input|host memory", "host memory");
    rank.fails(all(rank.rank == 0 ? 5 : 6, fcclFloat32, fcclSum), fcclInvalidUsage, "count 5|count 6", "disagreement");
    rank.ok(all(8, fcclFloat32, fcclSum), "a good call after all that");
    mine.synchronize();
  });
  cuda.run(caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 5, 64, 51));
}

TEST_CASE("CUDA communicator: one thread drives four ranks in groups, initialisation included") {
  FCCL_NEED_GPUS(1);
  constexpr int kRanks = 4;
  for (const int check : {0, 1}) {
    fcclConfig_t config = cudaConfig();
    config.checkCalls = check;
    fcclUniqueId id;
    REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
    std::vector<fcclComm_t> comms(kRanks);
    REQUIRE(fcclGroupStart() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      REQUIRE(fcclCommInit(&comms[static_cast<size_t>(r)], kRanks, id, r, &config) == fcclSuccess);
    }
    REQUIRE(fcclGroupEnd() == fcclSuccess);
    RankGroup group(comms);
    std::vector<std::unique_ptr<RankDevice>> devices;
    std::vector<float*> buffers;
    for (int r = 0; r < kRanks; ++r) {
      devices.push_back(std::make_unique<RankDevice>());
      buffers.push_back(static_cast<float*>(devices.back()->take(3000 * sizeof(float))));
    }
    for (int round = 0; round < 50; ++round) {
      REQUIRE(fcclGroupStart() == fcclSuccess);
      for (int r = 0; r < kRanks; ++r) {
        const auto at = static_cast<size_t>(r);
        const std::vector<float> values(3000, static_cast<float>((r + 1) * (round + 1)));
        devices[at]->upload(buffers[at], values.data(), 3000 * sizeof(float));
        REQUIRE(fcclAllReduce(buffers[at], buffers[at], 3000, fcclFloat32, fcclSum, group.comm(r),
                              devices[at]->stream()) == fcclSuccess);
      }
      REQUIRE(fcclGroupEnd() == fcclSuccess);
      for (size_t r = 0; r < kRanks; ++r) {
        std::vector<float> values(3000);
        devices[r]->download(values.data(), buffers[r], 3000 * sizeof(float));
        CHECK(values == std::vector<float>(3000, static_cast<float>(10 * (round + 1))));
      }
    }
  }
}

TEST_CASE("CUDA communicator: halves of a split work side by side") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(4);
  std::vector<fcclComm_t> comms(4);
  cuda.group().run("split", [&](Rank& rank) {
    fcclComm_t* const half = &comms[static_cast<size_t>(rank.rank)];
    rank.ok(fcclCommSplit(rank.comm, rank.rank % 2, -rank.rank, half, nullptr), "fcclCommSplit");
  });
  RankGroup halves(comms);
  halves.run("both halves", [&](Rank& rank) {
    int mine = -1;
    rank.ok(fcclCommUserRank(rank.comm, &mine), "fcclCommUserRank");
    rank.expect(mine == (rank.rank < 2 ? 1 : 0), "the keys turn the order round");
    for (const size_t count : {100, 5000}) {
      const std::string wrong = allReduceOnDevice(cuda.device(rank.rank), rank.comm, mine, 2, fcclBfloat16, count,
                                                  static_cast<uint64_t>(rank.rank % 2));
      rank.expect(wrong.empty(), wrong);
    }
  });
  cuda.run(FusedCase{});
}

TEST_CASE("CUDA windows: every rank reaches every rank's buffer") {
  FCCL_NEED_GPUS(1);
  for (const char* way : {"vmm", "ipc"}) {
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    CudaRanks cuda(3);
    cuda.group().run("windows", [&](Rank& rank) {
      void* block = nullptr;
      void* host = nullptr;
      fcclWindow_t window = nullptr;
      rank.ok(fcclMemAlloc(&block, 1 << 20), "fcclMemAlloc");
      rank.ok(fcclMemAllocOn(&host, 1 << 20, fcclDeviceHost), "fcclMemAllocOn");
      static_cast<char*>(host)[100] = 1;  // ordinary memory
      rank.fails(fcclCommWindowRegister(rank.comm, host, 1 << 20, &window, 0), fcclInvalidArgument, "buff|host memory",
                 "host memory in a CUDA window");
      rank.fails(fcclCommWindowRegister(rank.comm, cuda.device(rank.rank).take(64), 64, &window, 0),
                 fcclInvalidArgument, "buff|other GPU memory", "cudaMalloc in a CUDA window");
      std::vector<char> zero(1 << 20, 1);
      cuda.device(rank.rank).download(zero.data(), block, zero.size());
      rank.expect(std::all_of(zero.begin(), zero.end(), [](char c) { return c == 0; }), "not zeroed");
      rank.ok(fcclCommWindowRegister(rank.comm, static_cast<char*>(block) + 4096, 64 << 10, &window, 0), "register");
      rank.ok(fcclMemFree(block), "freed while registered");
      rank.ok(fcclCommWindowDeregister(rank.comm, window), "deregister");
      rank.ok(fcclMemFree(host), "fcclMemFree");
    });
  }
}

TEST_CASE("CUDA communicator: one rank on each GPU") {
  FCCL_NEED_GPUS(2);
  const int ranks = gpuCount();
  fcclConfig_t config = cudaConfig();
  config.allowSharedDevice = 0;
  for (const char* way : {"vmm", "ipc"}) {
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    std::vector<fcclComm_t> comms(static_cast<size_t>(ranks));
    REQUIRE(fcclCommInitAll(comms.data(), ranks, &config) == fcclSuccess);
    RankGroup group(comms);
    group.run("one GPU each", [&](Rank& rank) {
      // Another GPU is current than the communicator's: it takes its own and leaves this one.
      cudaOk(cudaSetDevice(rank.rank), "cudaSetDevice");
      RankDevice device;
      uint64_t seed = 0;
      for (const size_t count : {5, 4096, 300'000}) {
        for (const fcclDataType_t dtype : kTypes) {
          const std::string wrong = allReduceOnDevice(device, rank.comm, rank.rank, ranks, dtype, count, ++seed);
          rank.expect(wrong.empty(), wrong);
        }
      }
    });
  }
}
