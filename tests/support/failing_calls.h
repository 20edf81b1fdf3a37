// Lets system calls fail, one at a time, in programs that are linked with ${fccl_failing_calls} of
// cmake/FcclTests.cmake: there the library's calls of these functions come here first.
#pragma once

#include <string>

namespace fccl::test {

// From now on the calls of this thread that could fail are counted; the n-th of them (from 1) fails. n = 0: none does.
void failCall(int n);

struct CallsMade {
  int count = 0;
  std::string failed;  // the function that failed, if one did
};
// Since failCall(), which is over.
CallsMade endFailing();

}  // namespace fccl::test
