#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"

using fccl::CudaMemoryWay;
using fccl::Environment;
using fccl::LogLevel;
using fccl::Result;
using fccl::SimdTarget;
using fccl::test::ScopedVariable;

namespace {

Result<Environment> parse(const std::vector<std::string>& environment) {
  std::vector<std::string> unknown;
  Result<Environment> result = Environment::parse(environment, &unknown);
  CHECK(unknown.empty());
  return result;
}

Environment valueOf(const std::vector<std::string>& environment) {
  Result<Environment> result = parse(environment);
  REQUIRE(result.ok());
  return result.value();
}

// What a function writes to stderr.
template <class Function>
std::string capture(Function function) {
  FILE* file = tmpfile();
  REQUIRE(file != nullptr);
  fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  function();
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text;
  rewind(file);
  for (int c = fgetc(file); c != EOF; c = fgetc(file)) text.push_back(static_cast<char>(c));
  fclose(file);
  return text;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

struct ScopedLogLevel {
  ~ScopedLogLevel() { fccl::setLogLevel(LogLevel::kNone); }
};

}  // namespace

TEST_CASE("an empty environment leaves every default", "[environment]") {
  const Environment environment = valueOf({});
  CHECK(environment.debug == LogLevel::kNone);
  CHECK_FALSE(environment.strategy.has_value());
  CHECK_FALSE(environment.checkCalls.has_value());
  CHECK_FALSE(environment.timeoutMs.has_value());
  CHECK_FALSE(environment.initTimeoutMs.has_value());
  CHECK_FALSE(environment.sharedMemory.has_value());
  CHECK_FALSE(environment.bindCores.has_value());
  CHECK_FALSE(environment.slotBytes.has_value());
  CHECK_FALSE(environment.socketIfname.has_value());
  CHECK_FALSE(environment.commId.has_value());
  CHECK(environment.simd == SimdTarget::kAuto);
  CHECK_FALSE(environment.deviceType.has_value());
  CHECK_FALSE(environment.allowSharedDevice.has_value());
  CHECK_FALSE(environment.cudaWorkspaceBytes.has_value());
  CHECK(environment.cudaMemory == CudaMemoryWay::kAuto);
  CHECK_FALSE(environment.topologyFile.has_value());
  CHECK_FALSE(environment.topologyDump.has_value());
  CHECK_FALSE(environment.hostId.has_value());
}

TEST_CASE("every variable reaches its field", "[environment]") {
  const Environment environment = valueOf({"FCCL_DEBUG=INFO",
                                           "FCCL_STRATEGY=twoshot",
                                           "FCCL_CHECK=1",
                                           "FCCL_TIMEOUT_MS=1500",
                                           "FCCL_INIT_TIMEOUT_MS=0",
                                           "FCCL_SHARED_MEMORY=posix",
                                           "FCCL_BIND_CORES=0",
                                           "FCCL_SLOT_BYTES=8192",
                                           "FCCL_SOCKET_IFNAME=^lo,docker",
                                           "FCCL_COMM_ID=node7:4711",
                                           "FCCL_SIMD=avx2",
                                           "FCCL_DEVICE=cuda",
                                           "FCCL_ALLOW_SHARED_DEVICE=1",
                                           "FCCL_CUDA_WORKSPACE_BYTES=1048576",
                                           "FCCL_CUDA_MEMORY=ipc",
                                           "FCCL_NCCL=1",
                                           "FCCL_NCCL_SHIM=always",
                                           "FCCL_NCCL_SHIM_BYTES=4096",
                                           "FCCL_NCCL_LIB=/opt/libnccl.so",
                                           "FCCL_TOPO_FILE=/a/in.json",
                                           "FCCL_TOPO_DUMP=/a/out.json",
                                           "FCCL_HOSTID=left",
                                           "PATH=/bin"});
  CHECK(environment.debug == LogLevel::kInfo);
  CHECK(environment.strategy == fcclStrategyTwoshot);
  CHECK(environment.checkCalls == true);
  CHECK(environment.timeoutMs == 1500);
  CHECK(environment.initTimeoutMs == 0);
  CHECK(environment.sharedMemory == fcclSharedMemoryPosix);
  CHECK(environment.bindCores == false);
  CHECK(environment.slotBytes == 8192);
  CHECK(environment.socketIfname == "^lo,docker");
  CHECK(environment.commId == "node7:4711");
  CHECK(environment.simd == SimdTarget::kAvx2);
  CHECK(environment.deviceType == fcclDeviceCuda);
  CHECK(environment.allowSharedDevice == true);
  CHECK(environment.cudaWorkspaceBytes == 1 << 20);
  CHECK(environment.cudaMemory == CudaMemoryWay::kIpc);
  CHECK(environment.nccl == true);
  CHECK(environment.ncclShim == fccl::NcclShim::kAlways);
  CHECK(environment.ncclShimBytes == 4096);
  CHECK(environment.ncclLibrary == "/opt/libnccl.so");
  CHECK(environment.topologyFile == "/a/in.json");
  CHECK(environment.topologyDump == "/a/out.json");
  CHECK(environment.hostId == "left");
}

TEST_CASE("every word of every choice is understood, whatever its case", "[environment]") {
  CHECK(valueOf({"FCCL_DEBUG=NONE"}).debug == LogLevel::kNone);
  CHECK(valueOf({"FCCL_DEBUG=warn"}).debug == LogLevel::kWarn);
  CHECK(valueOf({"FCCL_DEBUG=Trace"}).debug == LogLevel::kTrace);
  CHECK(valueOf({"FCCL_STRATEGY=auto"}).strategy == fcclStrategyAuto);
  CHECK(valueOf({"FCCL_STRATEGY=ONESHOT"}).strategy == fcclStrategyOneshot);
  CHECK(valueOf({"FCCL_STRATEGY=min_latency"}).strategy == fcclStrategyMinLatency);
  CHECK(valueOf({"FCCL_STRATEGY=Ub"}).strategy == fcclStrategyUb);
  CHECK(valueOf({"FCCL_STRATEGY=LowPrecision"}).strategy == fcclStrategyLowPrecision);
  CHECK(valueOf({"FCCL_STRATEGY=NCCL"}).strategy == fcclStrategyNccl);
  CHECK(valueOf({"FCCL_STRATEGY=nccl_symmetric"}).strategy == fcclStrategyNcclSymmetric);
  CHECK(valueOf({"FCCL_CHECK=0"}).checkCalls == false);
  CHECK(valueOf({"FCCL_BIND_CORES=1"}).bindCores == true);
  CHECK(valueOf({"FCCL_SHARED_MEMORY=auto"}).sharedMemory == fcclSharedMemoryAuto);
  CHECK(valueOf({"FCCL_SHARED_MEMORY=memfd"}).sharedMemory == fcclSharedMemoryMemfd);
  CHECK(valueOf({"FCCL_SIMD=generic"}).simd == SimdTarget::kGeneric);
  CHECK(valueOf({"FCCL_SIMD=AVX512"}).simd == SimdTarget::kAvx512);
  CHECK(valueOf({"FCCL_SIMD=auto"}).simd == SimdTarget::kAuto);
}

TEST_CASE("the limits of numbers are inside", "[environment]") {
  CHECK(valueOf({"FCCL_TIMEOUT_MS=2147483647"}).timeoutMs == 2147483647);
  CHECK(valueOf({"FCCL_SLOT_BYTES=4096"}).slotBytes == 4096);
  CHECK(valueOf({"FCCL_SLOT_BYTES=67108864"}).slotBytes == 67108864);
  CHECK(valueOf({"FCCL_COMM_ID=[fe80::1%eth0]:65535"}).commId == "[fe80::1%eth0]:65535");
  CHECK(valueOf({"FCCL_COMM_ID=10.0.0.1:1"}).commId == "10.0.0.1:1");
}

TEST_CASE("a bad value names the variable, the value and what is allowed", "[environment]") {
  struct Row {
    const char* entry;
    const char* sentence;
  };
  const char* const address = "it must be host:port with a port from 1 to 65535, an IPv6 address in brackets.";
  const Row rows[] = {
      {"FCCL_DEBUG=loud", "it can be none, warn, info, trace."},
      {"FCCL_DEBUG=1", "it can be none, warn, info, trace."},
      {"FCCL_STRATEGY=nvls", "it can be auto, oneshot, twoshot, min_latency, ub, lowprecision, nccl, nccl_symmetric."},
      {"FCCL_CHECK=2", "it can be 0, 1."},
      {"FCCL_CHECK=yes", "it can be 0, 1."},
      {"FCCL_BIND_CORES= 1", "it can be 0, 1."},
      {"FCCL_SHARED_MEMORY=shm", "it can be auto, memfd, posix."},
      {"FCCL_SIMD=avx", "it can be auto, generic, avx2, avx512."},
      {"FCCL_TIMEOUT_MS=-1", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_TIMEOUT_MS=2147483648", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_TIMEOUT_MS=99999999999999999999999", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_TIMEOUT_MS=5s", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_TIMEOUT_MS=1e3", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_TIMEOUT_MS= 5", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_INIT_TIMEOUT_MS=0x10", "it must be a whole number from 0 to 2147483647."},
      {"FCCL_SLOT_BYTES=4095", "it must be a whole number from 4096 to 67108864."},
      {"FCCL_SLOT_BYTES=67108865", "it must be a whole number from 4096 to 67108864."},
      {"FCCL_SLOT_BYTES=64k", "it must be a whole number from 4096 to 67108864."},
      {"FCCL_COMM_ID=node7", address},
      {"FCCL_COMM_ID=:4711", address},
      {"FCCL_COMM_ID=node7:", address},
      {"FCCL_COMM_ID=node7:0", address},
      {"FCCL_COMM_ID=node7:65536", address},
      {"FCCL_COMM_ID=fe80::1:4711", address},
      {"FCCL_COMM_ID=[]:4711", address},
  };
  for (const Row& row : rows) {
    const std::string entry = row.entry;
    const size_t equals = entry.find('=');
    const Result<Environment> result = parse({entry});
    INFO(entry);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(result.status().message() ==
          entry.substr(0, equals) + " is '" + entry.substr(equals + 1) + "'; " + row.sentence);
  }
}

TEST_CASE("a variable that is set to nothing counts as not set", "[environment]") {
  for (const std::string_view name : Environment::names()) {
    const std::string entry = std::string(name) + "=";
    INFO(entry);
    CHECK(parse({entry}).ok());
  }
  CHECK_FALSE(valueOf({"FCCL_TIMEOUT_MS="}).timeoutMs.has_value());
  CHECK_FALSE(valueOf({"FCCL_SOCKET_IFNAME="}).socketIfname.has_value());
}

TEST_CASE("unknown names are handed back and foreign ones ignored", "[environment]") {
  std::vector<std::string> unknown;
  const Result<Environment> result = Environment::parse(
      {"FCCL_DEBGU=INFO", "FCCL_=x", "XFCCL_DEBUG=loud", "NCCL_DEBUG=loud", "FCCL_CHECK=1", "fccl_check=7"}, &unknown);
  REQUIRE(result.ok());
  CHECK(unknown == std::vector<std::string>{"FCCL_DEBGU", "FCCL_"});
  CHECK(result.value().checkCalls == true);
}

TEST_CASE("reading the process's environment sets the log level and warns once about an unknown name",
          "[environment]") {
  const ScopedLogLevel restore;
  const ScopedVariable debug("FCCL_DEBUG", "warn");
  const ScopedVariable close("FCCL_TIMEOUT_SM", "5");
  const ScopedVariable far("FCCL_COFFEE", "black");
  const std::string first = capture([] { CHECK(Environment::read().ok()); });
  CHECK(fccl::logLevel() == LogLevel::kWarn);
  CHECK(count(first, "\n") == 2);
  CHECK(count(first, "[WARN] FCCL_TIMEOUT_SM is not a variable of FCCL; did you mean FCCL_TIMEOUT_MS?\n") == 1);
  CHECK(count(first, "[WARN] FCCL_COFFEE is not a variable of FCCL; docs/environment.md lists those that are.\n") == 1);
  CHECK(capture([] { CHECK(Environment::read().ok()); }).empty());
}

TEST_CASE("a bad value in the process's environment is read()'s error", "[environment]") {
  const ScopedLogLevel restore;
  const ScopedVariable strategy("FCCL_STRATEGY", "fastest");
  const Result<Environment> result = Environment::read();
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().message() ==
        "FCCL_STRATEGY is 'fastest'; it can be auto, oneshot, twoshot, min_latency, ub, lowprecision, nccl, "
        "nccl_symmetric.");
}

TEST_CASE("the log writes one line per text, from its level upwards", "[environment]") {
  const ScopedLogLevel restore;
  fccl::setLogLevel(LogLevel::kInfo);
  const std::string text = capture([] {
    FCCL_TRACE("not {}", "this");
    FCCL_INFO("rank {}\nof {}", 1, 2);
    FCCL_WARN("slow");
  });
  CHECK(count(text, "\n") == 2);
  CHECK(count(text, "not this") == 0);
  CHECK(count(text, "[INFO] rank 1 of 2\n") == 1);
  CHECK(count(text, "[WARN] slow\n") == 1);
  CHECK(count(text, ":" + std::to_string(getpid()) + ":") == 2);

  fccl::setLogLevel(LogLevel::kNone);
  CHECK(capture([] { FCCL_WARN("silent"); }).empty());
}

TEST_CASE("docs/environment.md lists exactly the variables that are known", "[environment]") {
  std::ifstream file(FCCL_SOURCE_DIR "/docs/environment.md");
  REQUIRE(file.is_open());
  std::multiset<std::string> documented;
  const std::string start = "| `FCCL_";
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, start.size(), start) == 0) documented.insert(line.substr(3, line.find('`', 3) - 3));
  }
  const std::vector<std::string_view> names = Environment::names();
  CHECK(documented == std::multiset<std::string>(names.begin(), names.end()));
}
