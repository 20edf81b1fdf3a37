// Facts about this machine and this process that ranks compare before they share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fccl {

// From the kernel's random source.
Status randomBytes(void* target, size_t bytes);
// 32 hexadecimal digits from it.
Result<std::string> randomName();

// The kernel's boot id: the same in every container of one running kernel, different on another machine. Host names and
// namespaces are neither. Empty where /proc cannot be read.
std::string bootId();

// Random, made once per process and made anew in a forked child. A process id would not do: it is unique only inside
// its namespace, and two ranks that believe to be threads of one process hand each other pointers.
struct ProcessToken {
  uint64_t words[2];
  bool operator==(const ProcessToken&) const = default;
};
Result<ProcessToken> processToken();

// fcclSystemError where the machine cannot give `total` more bytes, or this process's control group not `own` of them.
// Asked before pages are taken, since Linux answers a lack of memory that it finds later by killing a process.
Status checkFreeMemory(size_t own, size_t total);

// "1.5 MiB", and the number of bytes where that is not exact.
std::string describeBytes(uint64_t bytes);

}  // namespace fccl
