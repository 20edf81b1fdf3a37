// How the ranks of a run meet outside the calls that are timed: as threads of this process, or (peers_mpi.h) as MPI
// processes. Each rank has a Ranks object of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "fccl.h"
#include "tests/perf/ping.h"

namespace fccl::perf {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  virtual const char* kind() const = 0;  // "threads" or "processes"

  virtual void barrier() = 0;
  // Each value becomes the largest, or the sum, of all ranks' values at that place.
  virtual void maximum(std::span<double> values) = 0;
  virtual double sum(double value) = 0;

  virtual PingCell& pingCell() = 0;  // one for all ranks
  // Collective. Returns the communicator of this rank. Throws std::runtime_error with FCCL's sentence.
  virtual fcclComm_t createCommunicator(const fcclConfig_t& config) = 0;
};

// Throws std::runtime_error with FCCL's last error where `result` is not fcclSuccess.
void require(fcclResult_t result, const char* call, fcclComm_t comm);

// Runs `body` on `count` threads and returns when all are done. An exception of one rank ends the process, since the
// others wait for it: message on stderr, exit status 1.
void runAsThreads(int count, const std::function<void(Ranks&)>& body);

}  // namespace fccl::perf
