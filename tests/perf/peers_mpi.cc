#include "tests/perf/peers_mpi.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tests/perf/machine.h"

#if FCCL_HAVE_MPI
#include <mpi.h>

#include "fccl_mpi.h"
#endif

namespace fccl::perf {

bool startedByMpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr; }

#if !FCCL_HAVE_MPI

namespace {
[[noreturn]] void refuse() {
  throw std::runtime_error(
      "this build has no MPI; install it (libopenmpi-dev) and configure again, or use --launch threads");
}
}  // namespace

bool haveMpi() { return false; }
std::string mpiVersion() { return {}; }
void executeUnderMpirun(int, char**) { refuse(); }
void runAsMpiRank(const std::function<void(Ranks&)>&) { refuse(); }
void addMpiPeers(const Case&, bool, int, int, Variants&) { refuse(); }

#else

namespace {

void requireMpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw std::runtime_error(fmt::format("{}: {}", call, text));
}

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    void* mine = nullptr;
    const MPI_Aint bytes = rank_ == 0 ? sizeof(PingCell) + alignof(PingCell) : 0;
    requireMpi(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window_),
               "MPI_Win_allocate_shared (all ranks must run on one machine)");
    MPI_Aint size = 0;
    int unit = 0;
    void* base = nullptr;
    requireMpi(MPI_Win_shared_query(window_, 0, &size, &unit, &base), "MPI_Win_shared_query");
    // Mappings begin at pages, so the offset that aligns is the same on every rank.
    const auto address = (reinterpret_cast<uintptr_t>(base) + alignof(PingCell) - 1) & ~(alignof(PingCell) - 1);
    cell_ = reinterpret_cast<PingCell*>(address);
    if (rank_ == 0) new (cell_) PingCell();
    barrier();
  }
  ~MpiRanks() override { MPI_Win_free(&window_); }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  const char* kind() const override { return "processes"; }
  void barrier() override { requireMpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }
  void maximum(std::span<double> values) override {
    requireMpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                             MPI_COMM_WORLD),
               "MPI_Allreduce");
  }
  double sum(double value) override {
    requireMpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    return value;
  }
  PingCell& pingCell() override { return *cell_; }
  fcclComm_t createCommunicator(const fcclConfig_t& config) override {
    fcclComm_t comm = nullptr;
    require(fcclCommInitMpi(&comm, MPI_COMM_WORLD, &config), "fcclCommInitMpi", nullptr);
    return comm;
  }

 private:
  int rank_ = 0;
  int count_ = 0;
  MPI_Win window_ = MPI_WIN_NULL;
  PingCell* cell_ = nullptr;
};

MPI_Datatype mpiType(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclInt8: return MPI_INT8_T;
    case fcclUint8: return MPI_UINT8_T;
    case fcclInt32: return MPI_INT32_T;
    case fcclUint32: return MPI_UINT32_T;
    case fcclInt64: return MPI_INT64_T;
    case fcclUint64: return MPI_UINT64_T;
    case fcclFloat32: return MPI_FLOAT;
    case fcclFloat64: return MPI_DOUBLE;
    case fcclFloat16:
    case fcclBfloat16: return MPI_UINT16_T;  // as bits, with an operator of our own
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpiOp(fcclRedOp_t op) {
  switch (op) {
    case fcclProd: return MPI_PROD;
    case fcclMax: return MPI_MAX;
    case fcclMin: return MPI_MIN;
    default: return MPI_SUM;  // of which avg is a quotient
  }
}

template <class T>
void divideAll(void* data, size_t count, int by) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; i++) values[i] = static_cast<T>(values[i] / static_cast<T>(by));
}

void divide(fcclDataType_t dtype, void* data, size_t count, int by) {
  switch (dtype) {
    case fcclInt8: return divideAll<int8_t>(data, count, by);
    case fcclUint8: return divideAll<uint8_t>(data, count, by);
    case fcclInt32: return divideAll<int32_t>(data, count, by);
    case fcclUint32: return divideAll<uint32_t>(data, count, by);
    case fcclInt64: return divideAll<int64_t>(data, count, by);
    case fcclUint64: return divideAll<uint64_t>(data, count, by);
    case fcclFloat32: return divideAll<float>(data, count, by);
    case fcclFloat64: return divideAll<double>(data, count, by);
    case fcclFloat16:
    case fcclBfloat16: {
      std::vector<float> wide(count);
      epilogueLoops().widen(dtype, data, wide.data(), count);
      epilogueLoops().narrow(dtype, wide.data(), 1.0f / static_cast<float>(by), data, count);
      return;
    }
  }
}

// An MPI operator has no argument of its own, so each pair of type and operator is a function.
template <fcclDataType_t kType, fcclRedOp_t kOp>
void sixteenBitOperator(void* in, void* inout, int* count, MPI_Datatype*) {
  epilogueLoops().combine(kType, kOp, in, inout, static_cast<size_t>(*count));
}

template <fcclDataType_t kType>
MPI_User_function* operatorFor(fcclRedOp_t op) {
  switch (op) {
    case fcclProd: return sixteenBitOperator<kType, fcclProd>;
    case fcclMax: return sixteenBitOperator<kType, fcclMax>;
    case fcclMin: return sixteenBitOperator<kType, fcclMin>;
    default: return sixteenBitOperator<kType, fcclSum>;
  }
}

int mpiCount(const Case& c) {
  if (c.count() > INT_MAX) {
    throw std::runtime_error(
        fmt::format("{} elements are more than one MPI_Allreduce takes ({}); use --compare none", c.count(), INT_MAX));
  }
  return static_cast<int>(c.count());
}

std::unique_ptr<Buffers> peerBuffers(const Case& c, bool inPlace, size_t staging) {
  return std::make_unique<Buffers>(c, inPlace, MemoryKind::kPlain, nullptr, staging);
}

// "mpi" and "mpi-op": MPI_Allreduce in the case's own type.
class InType final : public Variant {
 public:
  InType(const Case& c, bool inPlace, int rank, int ranks)
      : Variant(isSixteenBit(c.dtype) ? "mpi-op" : "mpi", c, inPlace, rank, peerBuffers(c, inPlace, 0)),
        case_(c),
        ranks_(ranks),
        count_(mpiCount(c)),
        type_(mpiType(c.dtype)),
        op_(mpiOp(c.op)),
        epilogue_(epilogueArgs(c, buffers(), buffers().output, c.dtype)) {
    if (!isSixteenBit(c.dtype)) return;
    MPI_User_function* function =
        c.dtype == fcclFloat16 ? operatorFor<fcclFloat16>(c.op) : operatorFor<fcclBfloat16>(c.op);
    requireMpi(MPI_Op_create(function, 1, &op_), "MPI_Op_create");
  }
  ~InType() override {
    if (isSixteenBit(case_.dtype)) MPI_Op_free(&op_);
  }
  void run() override {
    requireMpi(
        MPI_Allreduce(inPlace() ? MPI_IN_PLACE : buffers().input, buffers().output, count_, type_, op_, MPI_COMM_WORLD),
        "MPI_Allreduce");
    if (case_.op == fcclAvg) divide(case_.dtype, buffers().output, case_.count(), ranks_);
    if (case_.fused()) epilogueLoops().epilogue(epilogue_);
  }
  int extraRoundings() const override {
    if (!isSixteenBit(case_.dtype)) return 0;
    return (case_.op == fcclSum || case_.op == fcclAvg ? ranks_ - 2 : 0) + (case_.op == fcclAvg ? 1 : 0);
  }

 private:
  const Case case_;
  const int ranks_;
  const int count_;
  const MPI_Datatype type_;
  MPI_Op op_;
  const EpilogueArgs epilogue_;
};

// "mpi-fp32": 16-bit data that travels as fp32, reduced in place there (Open MPI's ring then has one copy less).
class OverFp32 final : public Variant {
 public:
  OverFp32(const Case& c, bool inPlace, int rank, int ranks)
      : Variant("mpi-fp32", c, inPlace, rank, peerBuffers(c, inPlace, c.count() * sizeof(float))),
        case_(c),
        count_(mpiCount(c)),
        op_(mpiOp(c.op)),
        factor_(c.op == fcclAvg ? 1.0f / static_cast<float>(ranks) : 1.0f),
        wire_(static_cast<float*>(buffers().staging)),
        epilogue_(epilogueArgs(c, buffers(), wire_, fcclFloat32)) {}
  void run() override {
    const EpilogueLoops& loops = epilogueLoops();
    loops.widen(case_.dtype, buffers().input, wire_, case_.count());
    requireMpi(MPI_Allreduce(MPI_IN_PLACE, wire_, count_, MPI_FLOAT, op_, MPI_COMM_WORLD), "MPI_Allreduce");
    if (case_.fused()) {
      loops.epilogue(epilogue_);
    } else {
      loops.narrow(case_.dtype, wire_, factor_, buffers().output, case_.count());
    }
  }
  // Its epilogue takes the sum unrounded, which is one rounding less than the reference.
  int extraRoundings() const override { return case_.fused() || case_.op == fcclAvg ? 1 : 0; }

 private:
  const Case case_;
  const int count_;
  const MPI_Op op_;
  const float factor_;
  float* const wire_;
  const EpilogueArgs epilogue_;
};

}  // namespace

bool haveMpi() { return true; }

std::string mpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

void executeUnderMpirun(int ranks, char** argv) {
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) throw std::runtime_error("/proc/self/exe cannot be read");
  std::vector<std::string> words{"mpirun", "-np", std::to_string(ranks)};
#if defined(OPEN_MPI)
  // --pin binds; what mpirun would bind by itself depends on the number of ranks.
  words.insert(words.end(), {"--bind-to", "none"});
  // Only where it is needed: with the flag Open MPI may yield its cores while it waits.
  if (static_cast<size_t>(ranks) > usableCpus().size()) words.emplace_back("--oversubscribe");
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
#endif
  words.emplace_back(self);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  for (char** argument = argv + 1; *argument != nullptr; argument++) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  execvp("mpirun", arguments.data());
  throw std::runtime_error(
      fmt::format("mpirun cannot be started: {}; is it installed (openmpi-bin)?", std::strerror(errno)));
}

void runAsMpiRank(const std::function<void(Ranks&)>& body) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    MpiRanks ranks;
    body(ranks);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fccl-perf: rank {}: {}\n", rank, error.what());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}

void addMpiPeers(const Case& c, bool inPlace, int rank, int ranks, Variants& variants) {
  if (isSixteenBit(c.dtype)) variants.push_back(std::make_unique<OverFp32>(c, inPlace, rank, ranks));
  variants.push_back(std::make_unique<InType>(c, inPlace, rank, ranks));
}

#endif

}  // namespace fccl::perf
