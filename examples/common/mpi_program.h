// What every MPI example needs: start itself under mpirun, hold MPI open, check each FCCL call.
#ifndef EXAMPLES_COMMON_MPI_PROGRAM_H_
#define EXAMPLES_COMMON_MPI_PROGRAM_H_

#include <fccl.h>
#include <fccl_mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

// Ends all ranks with the sentence that FCCL gives: after a failed collective the ranks no longer agree on what comes
// next.
#define CHECK_FCCL(comm, call)                                                                            \
  do {                                                                                                    \
    const fcclResult_t result_ = (call);                                                                  \
    if (result_ != fcclSuccess) {                                                                         \
      std::fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, fcclGetErrorString(result_), \
                   fcclGetLastError(comm));                                                               \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                                       \
    }                                                                                                     \
  } while (false)

// Open MPI and MPICH (Hydra) tell their processes so; PMIX_RANK is set by both and by Slurm.
inline bool underMpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

constexpr const char* kTerminalVariable = "EXAMPLE_TERMINAL";

// Replaces this process by `mpirun -np ranks` of the same program with the same arguments. Returns only by exception.
[[noreturn]] inline void launchUnderMpirun(int ranks, char** argv) {
  // Open MPI refuses root unless told twice; a container often has no other user.
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  }
  // mpirun puts a pipe or a terminal of its own between us and the user, so only this process can tell which it is.
  setenv(kTerminalVariable, isatty(STDERR_FILENO) ? "1" : "0", 1);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string count = std::to_string(ranks);
  // More ranks than cores are fine: a waiting rank gives its core away. Unbound, the kernel spreads them.
  std::vector<const char*> command = {"mpirun", "--oversubscribe", "--bind-to",    "none",
                                      "-np",    count.c_str(),     program.c_str()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) command.push_back(*argument);
  command.push_back(nullptr);
  execvp(command[0], const_cast<char* const*>(command.data()));
  throw std::runtime_error(std::string("cannot start mpirun: ") + std::strerror(errno) +
                           " (Debian and Ubuntu have it in openmpi-bin)");
}

class MpiSession {
 public:
  MpiSession() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~MpiSession() { MPI_Finalize(); }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  int rank_ = 0;
  int ranks_ = 0;
};

// The communicator over all ranks of MPI_COMM_WORLD.
class Communicator {
 public:
  // NULL: on HOST, with default settings.
  explicit Communicator(const fcclConfig_t* config = nullptr) {
    fcclConfig_t host = FCCL_CONFIG_INITIALIZER;
    host.deviceType = fcclDeviceHost;
    CHECK_FCCL(nullptr, fcclCommInitMpi(&comm_, MPI_COMM_WORLD, config != nullptr ? config : &host));
  }
  ~Communicator() { CHECK_FCCL(nullptr, fcclCommDestroy(comm_)); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  operator fcclComm_t() const { return comm_; }

 private:
  fcclComm_t comm_ = nullptr;
};

// The whole of main after the options: starts `ranks` ranks unless mpirun has done so, runs `body` on each, and turns
// its answer, or an exception, into the exit status. An exception before the ranks have met is most often the same on
// all of them (a file, an option), so only the lowest rank that has one prints it.
template <class Body>
int runProgram(int ranks, char** argv, Body body) {
  try {
    if (!underMpirun()) launchUnderMpirun(ranks, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  const MpiSession mpi;
  std::string failure;
  bool holds = false;
  try {
    holds = body(mpi);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const int speaker = failure.empty() ? mpi.ranks() : mpi.rank();
  int lowest = 0;
  MPI_Allreduce(&speaker, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (mpi.rank() == lowest) std::fprintf(stderr, "error: %s\n", failure.c_str());
  return holds && lowest == mpi.ranks() ? 0 : 1;
}

// True on all ranks if `data` holds the same bytes on all ranks, by a 64-bit hash (FNV-1a over 8-byte words).
inline bool sameOnAllRanks(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(data) + done, std::min(sizeof(word), bytes - done));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  uint64_t lowest = 0;
  uint64_t highest = 0;
  MPI_Allreduce(&hash, &lowest, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&hash, &highest, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
  return lowest == highest;
}

#endif  // EXAMPLES_COMMON_MPI_PROGRAM_H_
