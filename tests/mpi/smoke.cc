// Under mpirun: a communicator over MPI_COMM_WORLD with unequal starts, over a part of it, and again; sums and a fused
// call compared with MPI's own.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fccl_mpi.h"

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "smoke: %s: %s\n", what, fcclGetLastError(nullptr));
  ++failures;
}

// fp32 in rank order from +0, as FCCL promises; MPI promises no order, so the reference is made from a gather.
std::vector<float> sumInRankOrder(const std::vector<float>& mine, MPI_Comm world) {
  int ranks = 0;
  MPI_Comm_size(world, &ranks);
  std::vector<float> all(mine.size() * static_cast<size_t>(ranks));
  const int count = static_cast<int>(mine.size());
  MPI_Allgather(mine.data(), count, MPI_FLOAT, all.data(), count, MPI_FLOAT, world);
  std::vector<float> sum(mine.size(), 0.0f);
  for (size_t i = 0; i < all.size(); ++i) sum[i % mine.size()] += all[i];
  return sum;
}

void reduceAndCompare(fcclComm_t comm, MPI_Comm world, size_t count) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  std::vector<float> mine(count);
  for (size_t i = 0; i < count; ++i) mine[i] = std::sin(static_cast<float>(i * 7 + 1)) * static_cast<float>(rank + 1);
  std::vector<float> result(count);
  expect(fcclAllReduce(mine.data(), result.data(), count, fcclFloat32, fcclSum, comm, nullptr) == fcclSuccess,
         "fcclAllReduce");
  expect(result == sumInRankOrder(mine, world), "the sum is not that in rank order");
}

void fuseAndCompare(fcclComm_t comm, MPI_Comm world) {
  constexpr int kTokens = 3;
  constexpr int kHidden = 200;
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  std::vector<float> mine(size_t{kTokens} * kHidden);
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = std::cos(static_cast<float>(i + 1)) + static_cast<float>(rank);
  const std::vector<float> weight(kHidden, 1.5f);
  std::vector<float> reduced(mine.size());
  std::vector<float> norm(mine.size());
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.pattern = fcclPatternRmsNorm;
  args.dtype = fcclFloat32;
  args.tokens = kTokens;
  args.hidden = kHidden;
  args.input = mine.data();
  args.weight = weight.data();
  args.reducedOut = reduced.data();
  args.normOut = norm.data();
  expect(fcclAllReduceFused(&args, comm, nullptr) == fcclSuccess, "fcclAllReduceFused");
  const std::vector<float> sum = sumInRankOrder(mine, world);
  expect(reduced == sum, "reducedOut");
  for (size_t row = 0; row < kTokens; ++row) {
    double squares = 0;
    for (size_t i = 0; i < kHidden; ++i)
      squares += static_cast<double>(sum[row * kHidden + i]) * sum[row * kHidden + i];
    const double k = 1 / std::sqrt(squares / kHidden + 1e-5);
    for (size_t i = row * kHidden; i < (row + 1) * kHidden; ++i) {
      if (std::fabs(norm[i] - sum[i] * k * 1.5) > 1e-6 * std::fabs(sum[i] * k * 1.5) + 1e-12) {
        expect(false, "normOut is not the norm");
        return;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  config.timeoutMs = config.initTimeoutMs = 30'000;
  for (int round = 0; round < 3; ++round) {
    // One rank comes late to the broadcast, so that others are already past it.
    if (rank == (round + 1) % ranks) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    fcclComm_t comm = nullptr;
    expect(fcclCommInitMpi(&comm, MPI_COMM_WORLD, &config) == fcclSuccess, "fcclCommInitMpi");
    if (comm == nullptr) MPI_Abort(MPI_COMM_WORLD, 1);
    int number = -1;
    expect(fcclCommUserRank(comm, &number) == fcclSuccess && number == rank, "rank");
    expect(fcclCommCount(comm, &number) == fcclSuccess && number == ranks, "count");
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{300'001}}) reduceAndCompare(comm, MPI_COMM_WORLD, count);
    fuseAndCompare(comm, MPI_COMM_WORLD);
    expect(fcclCommDestroy(comm) == fcclSuccess, "fcclCommDestroy");
  }

  // Over halves, at the same time.
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  fcclComm_t comm = nullptr;
  expect(fcclCommInitMpi(&comm, half, &config) == fcclSuccess, "fcclCommInitMpi of a half");
  if (comm == nullptr) MPI_Abort(MPI_COMM_WORLD, 1);
  reduceAndCompare(comm, half, 5000);
  expect(fcclCommDestroy(comm) == fcclSuccess, "fcclCommDestroy of a half");
  MPI_Comm_free(&half);
  expect(fcclCommInitMpi(nullptr, MPI_COMM_WORLD, &config) == fcclInvalidArgument, "NULL is refused on every rank");

  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("mpi smoke: %d ranks, %d failures\n", ranks, all);
  MPI_Finalize();
  return all == 0 ? 0 : 1;
}
