// Which strategy a case runs with, asked before it is timed: no figure stands under the name of another.
#pragma once

#include <string>
#include <vector>

#include "fccl.h"
#include "tests/perf/cases.h"

namespace fccl::perf {

// What the library takes for the case, as it decides for the call itself.
struct Choice {
  std::string strategy;  // "ONESHOT"; empty: none can do it
  std::string refusal;   // why that is not what the case asks for, a sentence; empty: it is
};
Choice choiceOf(const Case& c, bool inPlace, fcclComm_t comm);

// The same of several places (true: in place).
struct Choices {
  std::vector<bool> served;  // the places that are to be timed
  std::string refusals;      // of the others: comment lines (#)
};
Choices choicesOf(const Case& c, const std::vector<bool>& places, fcclComm_t comm);

}  // namespace fccl::perf
