#include <fcntl.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "tests/support/catch.h"

using fccl::Result;
using fccl::Status;

namespace {

Status failWhen(bool bad) {
  if (bad) return fccl::failure(fcclInvalidArgument, "count is {}; it must not be.", 7);
  return {};
}

Status passOn(bool bad, int* reached) {
  FCCL_TRY(failWhen(bad));
  ++*reached;
  return {};
}

Result<int> half(int number) {
  if (number % 2 != 0) return fccl::failure(fcclInvalidUsage, "{} is odd.", number);
  return number / 2;
}

Result<int> quarter(int number) {
  FCCL_TRY_ASSIGN(int first, half(number));
  FCCL_TRY_ASSIGN(first, half(first));
  return first;
}

Status openMissing() {
  FCCL_SYS(open("/nonexistent/file", O_RDONLY | O_CLOEXEC));
  return {};
}

}  // namespace

TEST_CASE("a Status is a success or carries code and sentence", "[base]") {
  const Status success;
  CHECK(success.ok());
  CHECK(success.code() == fcclSuccess);
  CHECK(success.message().empty());

  const Status error = failWhen(true);
  CHECK_FALSE(error.ok());
  CHECK(error.code() == fcclInvalidArgument);
  CHECK(error.message() == "count is 7; it must not be.");

  Status copy;
  copy = error;
  CHECK(copy.code() == fcclInvalidArgument);
  CHECK(copy.message() == error.message());
}

TEST_CASE("FCCL_TRY returns the error and goes on after a success", "[base]") {
  int reached = 0;
  CHECK(passOn(false, &reached).ok());
  CHECK(reached == 1);
  CHECK(passOn(true, &reached).code() == fcclInvalidArgument);
  CHECK(reached == 1);
}

TEST_CASE("FCCL_TRY_ASSIGN takes the value or returns the error", "[base]") {
  CHECK(quarter(12).value() == 3);
  CHECK(quarter(6).status().message() == "3 is odd.");
  CHECK(quarter(5).status().code() == fcclInvalidUsage);
}

TEST_CASE("FCCL_SYS names the call, the reason and the place", "[base]") {
  const Status status = openMissing();
  CHECK(status.code() == fcclSystemError);
  CHECK_THAT(status.message(), Catch::Matchers::StartsWith("open(\"/nonexistent/file\""));
  CHECK(status.message().find("No such file or directory") != std::string::npos);
  CHECK(status.message().find("test_status.cc:") != std::string::npos);
}
