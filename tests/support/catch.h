// Catch2 as the tests use it, version 2 (one header) or 3: Approx and matchers without their version's namespaces,
// FCCL_SKIP for SKIP, and the session that every test program runs.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#ifdef FCCL_CATCH_RUNNER
#define CATCH_CONFIG_RUNNER
#endif
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <string>

namespace fccl::test {

// Runs the test cases that the arguments select. 0: passed; 4: passed, but a test case has skipped; 1: not passed.
int runCatch(int argc, char** argv);

// Counts a skipped test case; used by FCCL_SKIP where Catch2 has no SKIP.
void noteSkipped();

}  // namespace fccl::test

// Ends the test case, which counts as skipped. In the body of a TEST_CASE only.
#ifdef SKIP
#define FCCL_SKIP(reason) SKIP("SKIPPED: " << (reason))
#else
#define FCCL_SKIP(reason)                                      \
  do {                                                         \
    std::printf("SKIPPED: %s\n", std::string(reason).c_str()); \
    ::fccl::test::noteSkipped();                               \
    return;                                                    \
  } while (0)
#endif
