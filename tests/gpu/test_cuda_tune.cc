// fcclCommTune on a GPU that ranks share: AUTO takes what was measured, enqueued calls come before it, and while a
// stream is captured it is refused on all ranks.
#include <fmt/format.h>

#include "lib/testing.h"
#include "tests/gpu/device_ranks.h"
#include "tests/support/explained.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"

using namespace fccl::test;

namespace {

std::vector<fcclQuery_t> queries(bool windows = false) {
  std::vector<fcclQuery_t> all;
  for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNormQuantNvfp4}) {
    for (const int64_t tokens : {4, 256}) {
      fcclQuery_t query = FCCL_QUERY_INITIALIZER;
      query.pattern = pattern;
      query.tokens = tokens;
      query.hidden = 4096;
      query.inputInWindow = query.outputInWindow = windows ? 1 : 0;
      all.push_back(query);
    }
  }
  return all;
}

fcclResult_t tune(fcclComm_t comm, const std::vector<fcclQuery_t>& all) {
  return fcclCommTune(comm, all.data(), static_cast<int>(all.size()), 5000);
}

}  // namespace

TEST_CASE("CUDA tune: AUTO takes what was measured, on all ranks alike, and results stay right") {
  FCCL_NEED_GPUS(1);
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    CudaRanks cuda(ranks);
    FusedCase asked;
    asked.tokens = 40;
    asked.hidden = 4096;
    asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
    FusedProblem problem(asked, ranks);
    const auto checkCall = [&] {
      const FusedOutputs outputs = cuda.run(problem);
      CHECK(problem.check(asked.pattern, outputs, outputs.norm).empty());
    };
    checkCall();
    cuda.group().run(
        "tune", [&](Rank& rank) { rank.ok(tune(rank.comm, queries()), "fcclCommTune"); }, Seconds(60));
    for (const fcclQuery_t& query : queries()) {
      const std::string text = explained(cuda.group().comm(0), query);
      INFO(text);
      CHECK(contains(text, "Tuned, measured at "));
      CHECK(contains(text, "TWOSHOT"));
      for (int r = 1; r < ranks; ++r) CHECK(explained(cuda.group().comm(r), query) == text);
    }
    checkCall();
  }
}

TEST_CASE("CUDA tune: a rank that goes on at once waits for nobody who still gives back what tuning took") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  cuda.group().run(
      "tune and call",
      [&](Rank& rank) {
        RankDevice& device = cuda.device(rank.rank);
        void* const data = device.take(4096);
        for (int i = 0; i < 20; ++i) {
          fcclQuery_t query = FCCL_QUERY_INITIALIZER;
          query.hidden = 4096 << i % 8;
          rank.ok(fcclCommTune(rank.comm, &query, 1, 200), "fcclCommTune");
          rank.ok(fcclAllReduce(data, data, 1000, fcclFloat32, fcclSum, rank.comm, device.stream()), "fcclAllReduce");
        }
        device.synchronize();
      },
      Seconds(60));
}

TEST_CASE("CUDA tune: NCCL is timed where it is beside, and not chosen") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.nccl = 1;
  CudaRanks cuda(1, config);
  cuda.group().run(
      "tune", [&](Rank& rank) { rank.ok(tune(rank.comm, queries()), "fcclCommTune"); }, Seconds(60));
  for (const fcclQuery_t& query : queries()) {
    const std::string text = explained(cuda.group().comm(0), query);
    INFO(text);
    CHECK(contains(text, ", NCCL "));
    CHECK_FALSE(contains(text, "-> NCCL"));
  }
}

TEST_CASE("CUDA tune: in windows too, which are gone afterwards") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  cuda.group().run(
      "tune", [&](Rank& rank) { rank.ok(tune(rank.comm, queries(true)), "fcclCommTune"); }, Seconds(60));
  for (const fcclQuery_t& query : queries(true)) CHECK(contains(explained(cuda.group().comm(1), query), ", UB "));
  CHECK(fccl::testing::communicatorOf(cuda.group().comm(0)).windows().empty());
}

TEST_CASE("CUDA tune: refused on all ranks while one of them captures, whose capture that ends") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  cuda.group().run("tune in a capture", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    if (rank.rank == 0) cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal), "begin");
    rank.fails(tune(rank.comm, queries()), fcclInvalidUsage, "is being captured; tune before the capture begins",
               "fcclCommTune");
    if (rank.rank != 0) return;
    cudaGraph_t graph = nullptr;
    // CUDA invalidates a capture when its GPU is waited for.
    rank.expect(cudaStreamEndCapture(device.stream(), &graph) == cudaErrorStreamCaptureInvalidated, "a whole capture");
    (void)cudaGetLastError();
  });
  cuda.group().run(
      "tune", [&](Rank& rank) { rank.ok(tune(rank.comm, queries()), "fcclCommTune"); }, Seconds(60));
}

TEST_CASE("CUDA tune: a rank that stays away is an error of the others, and their GPU goes on") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.initTimeoutMs = 2000;
  CudaRanks cuda(2, config);
  cuda.group().run("tune alone", [&](Rank& rank) {
    if (rank.rank == 0) return;
    rank.expect(tune(rank.comm, queries()) != fcclSuccess, "tuned without rank 0");
    cudaOk(cudaDeviceSynchronize(), "the GPU after that");
  });
}

TEST_CASE("CUDA tune: FCCL_AUTOTUNE=1 measures the first call of a bucket, but none that is captured") {
  FCCL_NEED_GPUS(1);
  const ScopedVariable on("FCCL_AUTOTUNE", "1");
  CudaRanks cuda(2);
  FusedCase asked;
  asked.tokens = 13;
  asked.hidden = 4096;
  FusedProblem problem(asked, 2);
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = asked.pattern;
  query.tokens = asked.tokens;
  query.hidden = asked.hidden;
  const auto checkCall = [&](FusedProblem& each) {
    const FusedOutputs outputs = cuda.run(each);
    CHECK(each.check(asked.pattern, outputs, outputs.norm).empty());
  };
  checkCall(problem);
  CHECK(contains(explained(cuda.group().comm(0), query), "Tuned, measured at 16 tokens"));
  checkCall(problem);

  query.tokens = 256;
  cuda.group().run("capture", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    void* const data = device.take(256 * 4096 * 2);
    cudaGraph_t graph = nullptr;
    cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal), "begin");
    rank.ok(fcclAllReduce(data, data, size_t{256} * 4096, fcclBfloat16, fcclSum, rank.comm, device.stream()),
            "captured call");
    cudaOk(cudaStreamEndCapture(device.stream(), &graph), "end");
    cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
  query.pattern = fcclPatternAllReduce;
  CHECK_FALSE(contains(explained(cuda.group().comm(0), query), "Tuned, measured"));
}

TEST_CASE("CUDA tune: with FCCL_AUTOTUNE=1 one thread drives two ranks, in a group and without") {
  FCCL_NEED_GPUS(1);
  const ScopedVariable on("FCCL_AUTOTUNE", "1");
  for (const bool inGroup : {true, false}) {
    INFO("in a group: " << inGroup);
    CudaRanks cuda(2);
    const std::vector<float> ones(5000, 1.0f);
    std::vector<float*> data;
    for (int r = 0; r < 2; ++r) {
      data.push_back(static_cast<float*>(cuda.device(r).take(ones.size() * sizeof(float))));
      cuda.device(r).upload(data.back(), ones.data(), ones.size() * sizeof(float));
    }
    runThreads(1, "one thread, two ranks", Seconds(20), [&](int) {
      if (inGroup) fcclGroupStart();
      for (int r = 0; r < 2; ++r) {
        float* const own = data[static_cast<size_t>(r)];
        fcclAllReduce(own, own, ones.size(), fcclFloat32, fcclSum, cuda.group().comm(r), cuda.device(r).stream());
      }
      if (inGroup) fcclGroupEnd();
    });
    fcclQuery_t query = FCCL_QUERY_INITIALIZER;
    query.dtype = fcclFloat32;
    query.hidden = static_cast<int64_t>(ones.size());
    for (int r = 0; r < 2; ++r) {
      std::vector<float> out(ones.size());
      cuda.device(r).download(out.data(), data[static_cast<size_t>(r)], out.size() * sizeof(float));
      CHECK(out == std::vector<float>(ones.size(), 2.0f));
      CHECK(contains(explained(cuda.group().comm(r), query), "Tuned, measured") == inGroup);
    }
  }
}
