// Whose failure ncclGetLastError tells of: the last one, in the thread that was given it.
#pragma once

#include <string>

namespace fccl::shim {

// What became of something that FCCL did; `error`: where it failed, its sentence.
struct Outcome {
  int code = 0;
  std::string error;
};

// The code, as the program gets it.
int tell(Outcome outcome);
// NCCL has failed since.
void forgetOutcome();
// FCCL's sentence, valid until this thread's next failure; NULL where the last failure was not FCCL's.
const char* lastFcclError();

}  // namespace fccl::shim
