// What tests of symmetric memory on the host ask of it, for bodies of ranks: each returns what is wrong, or nothing.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "transport/bootstrap.h"
#include "transport/symmetric_memory.h"

namespace fccl::test {

constexpr fcclSharedMemory_t kProviders[] = {fcclSharedMemoryAuto, fcclSharedMemoryMemfd, fcclSharedMemoryPosix};

// What kind() says of memory of this provider between processes.
const char* kindOf(fcclSharedMemory_t provider);

HostMemoryOptions with(fcclSharedMemory_t provider);

// A byte that depends on the rank and the place.
char valueOf(int rank, size_t i);

// Zeroed at first, then every rank's values where every rank expects them.
std::string checkContents(Bootstrap& bootstrap, const SymmetricMemory& memory);

std::string createAndCheck(Bootstrap& bootstrap, fcclSharedMemory_t provider, std::string_view kind,
                           size_t bytes = 100'000);

// The status has this code, and its sentence each of these parts.
std::string expectFailure(const Status& status, fcclResult_t code, std::initializer_list<std::string_view> parts);

}  // namespace fccl::test
