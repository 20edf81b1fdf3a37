#pragma once

#include <string>

#include "fccl.h"

namespace fccl::test {

// What fcclExplain says; where it fails, the last error.
inline std::string explained(fcclComm_t comm, const fcclQuery_t& query) {
  std::string text(16384, '\0');
  if (fcclExplain(comm, &query, text.data(), text.size()) != fcclSuccess) return fcclGetLastError(comm);
  return text.c_str();
}

}  // namespace fccl::test
