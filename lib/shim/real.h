// The NCCL behind the shim.
#pragma once

#include "lib/shim/last_error.h"

namespace fccl::shim {

// The real function of that name; NULL where there is none. The copy that the process has loaded, as soon as there is
// one: a program may load it long after the shim.
void* findReal(const char* name);

// Calls it with the arguments as they came. A name that the NCCL behind does not have gives ncclInvalidUsage.
template <class... Args>
int callReal(const char* name, Args... args) {
  auto* const function = reinterpret_cast<int (*)(Args...)>(findReal(name));
  constexpr int kInvalidUsage = 5;
  const int code = function != nullptr ? function(args...) : kInvalidUsage;
  if (code != 0) forgetOutcome();
  return code;
}

}  // namespace fccl::shim
