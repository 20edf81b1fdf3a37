// What the figures were measured on, and which core a rank runs on.
#pragma once

#include <string>
#include <vector>

namespace fccl::perf {

struct Cache {
  std::string name;    // "L1 Data", "L3 Unified"
  std::string size;    // "32K"
  std::string shared;  // CPUs that share it with CPU 0: "0-7"; empty: not known
};

struct Machine {
  std::string cpu;
  int sockets = 0;
  int cpus = 0;        // in the machine
  int usableCpus = 0;  // of this process
  long memoryMiB = 0;
  std::string kernel;
  std::vector<Cache> caches;  // of CPU 0
};

// Unknown facts stay empty or 0.
Machine describeMachine();

// CPUs this process may use, the first hardware thread of each core before the second ones.
std::vector<int> usableCpus();

// Binds the calling thread to the rank-th usable CPU, or its remainder where there are more ranks. Throws
// std::runtime_error.
void pinToCore(int rank);

}  // namespace fccl::perf
