#include "lib/shim/last_error.h"

#include <utility>

namespace fccl::shim {
namespace {

thread_local std::string sentence;

}  // namespace

int tell(Outcome outcome) {
  if (outcome.code != 0) sentence = std::move(outcome.error);
  return outcome.code;
}

void forgetOutcome() { sentence.clear(); }

const char* lastFcclError() { return sentence.empty() ? nullptr : sentence.c_str(); }

}  // namespace fccl::shim
