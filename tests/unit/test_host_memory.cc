// Symmetric memory and windows between threads, and what does not need a second process: sizes, refusals, leaks, NUMA.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/host_memory_checks.h"
#include "tests/support/local_ranks.h"
#include "tests/support/text.h"
#include "transport/machine.h"
#include "transport/numa.h"
#include "transport/symmetric_memory.h"

using namespace fccl;
using namespace fccl::test;
using Memory = std::unique_ptr<SymmetricMemory>;

namespace {

constexpr size_t kPage = 4096;

struct WindowBlock {
  explicit WindowBlock(size_t bytes) {
    Result<void*> made = allocateWindowMemory(bytes);
    if (made.ok()) data = static_cast<char*>(made.value());
  }
  ~WindowBlock() {
    if (data != nullptr) (void)freeWindowMemory(data);
  }
  WindowBlock(const WindowBlock&) = delete;
  char* data = nullptr;
};

}  // namespace

TEST_CASE("host memory: threads see each other's parts") {
  for (const int ranks : {1, 2, 3, 8, 72}) {
    for (const size_t bytes : {size_t{1}, kPage, 3 * kPage + 5, size_t{100'000}}) {
      if (ranks > 8 && bytes > 4 * kPage) continue;  // each rank reads all
      INFO(ranks << " ranks, " << bytes << " bytes");
      CHECK(runOnThreads(ranks, [&](int rank, Bootstrap& bootstrap) -> std::string {
              Result<Memory> memory = createHostMemory(bootstrap, bytes, {});
              if (!memory.ok()) return memory.status().message();
              if (memory.value()->bytes() != bytes) return "bytes() is not what was asked for";
              if (!contains(memory.value()->kind(), "threads")) return memory.value()->kind();
              if (reinterpret_cast<uintptr_t>(memory.value()->peer(rank)) % kPage != 0) return "not page aligned";
              return checkContents(bootstrap, *memory.value());
            }) == "");
    }
  }
}

TEST_CASE("host memory: each rank gives it back alone, in any order") {
  CHECK(runOnThreads(4, [](int rank, Bootstrap& bootstrap) -> std::string {
          for (int first = 0; first < 4; ++first) {
            Result<Memory> memory = createHostMemory(bootstrap, 10'000, {});
            if (!memory.ok()) return memory.status().message();
            if (rank == first) memory.value().reset();
            if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
            if (rank == first) continue;
            for (int r = 0; r < 4; ++r) memory.value()->peer(r)[rank] = 1;
          }
          return "";
        }) == "");
}

TEST_CASE("host memory: impossible sizes are errors on all ranks") {
  const size_t most = std::numeric_limits<size_t>::max();
  const auto fails = [](size_t bytes, fcclResult_t code, std::string_view part) {
    return runOnThreads(3, [=](int, Bootstrap& bootstrap) {
      return expectFailure(createHostMemory(bootstrap, bytes, {}).status(), code, {part});
    });
  };
  CHECK(fails(0, fcclInvalidArgument, "0 bytes") == "");
  for (const size_t bytes : {most, most - kPage, most / 2, most / 3 + 1, size_t{1} << 63}) {
    INFO(bytes);
    CHECK(fails(bytes, fcclInvalidArgument, std::to_string(bytes)) == "");
  }
  CHECK(fails(size_t{1} << 60, fcclSystemError, "available") == "");
  CHECK(fails(size_t{1} << 44, fcclSystemError, "available") == "");
}

TEST_CASE("host memory: ranks that ask for different things all get the reason") {
  CHECK(runOnThreads(3, [](int rank, Bootstrap& bootstrap) {
          const Status status = createHostMemory(bootstrap, rank == 2 ? 4096 : 8192, {}).status();
          return expectFailure(status, fcclInvalidUsage, {"4096", "8192", "rank 2"});
        }) == "");
  CHECK(runOnThreads(3, [](int rank, Bootstrap& bootstrap) {
          HostMemoryOptions options;
          if (rank == 1) options.provider = fcclSharedMemoryPosix;
          return expectFailure(createHostMemory(bootstrap, 4096, options).status(), fcclInvalidUsage,
                               {"auto", "posix", "rank 1"});
        }) == "");
}

TEST_CASE("host memory: a rank that does not come is an error, and nothing leaks") {
  // What a process opens once and keeps is not a leak.
  REQUIRE(runOnThreads(3, [](int, Bootstrap& bootstrap) -> std::string {
            return createHostMemory(bootstrap, 4096, {}).status().message();
          }) == "");
  const Footprint before = footprint();
  // The rank leaves before each call of the bootstrap in turn, up to one that is never reached.
  for (int last = 0; last < 9; ++last) {
    SharedGroup group(3);
    std::atomic<int> failed{0};
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        struct Gone {};
        try {
          const auto bootstrap = group.member(r, std::chrono::milliseconds(50), [&](int call) {
            if (r == 1 && call == last) throw Gone();
          });
          if (!createHostMemory(*bootstrap, 4096, {}).ok()) ++failed;
        } catch (const Gone&) {
        }
      });
    }
    threads.clear();
    INFO("leaves before call " << last);
    // Threads need fewer calls than nine, so the last rounds succeed.
    CHECK((failed == 2 || (failed == 0 && last > 4)));
  }
  const Footprint after = footprint();
  CHECK(after.descriptors == before.descriptors);
#if !defined(__SANITIZE_THREAD__)                 // whose runtime maps memory of its own for every new thread
  CHECK(after.mappings <= before.mappings + 20);  // stacks and arenas that the C library keeps for later threads
#endif
}

TEST_CASE("host memory: descriptors and mappings stay flat") {
  const auto rounds = [](int count) {
    return runOnThreads(2, [=](int rank, Bootstrap& bootstrap) -> std::string {
      for (int i = 0; i < count; ++i) {
        if (Result<Memory> made = createHostMemory(bootstrap, 5'000'000, {}); !made.ok())
          return made.status().message();
        if (createHostMemory(bootstrap, size_t{1} << 60, {}).ok()) return "2^60 bytes were given";
        if (createHostMemory(bootstrap, rank == 0 ? 4096 : 8192, {}).ok()) return "different sizes were taken";
        WindowBlock block(10'000);
        Result<Memory> window = mapHostWindow(bootstrap, block.data, 10'000, {});
        if (!window.ok()) return window.status().message();
        if (mapHostWindow(bootstrap, rank == 0 ? &i : static_cast<void*>(block.data), 4, {}).ok())
          return "a stack pointer was taken";
      }
      return "";
    });
  };
  REQUIRE(rounds(10) == "");
  const Footprint before = footprint();
  REQUIRE(rounds(200) == "");
  const Footprint after = footprint();
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.mappings <= before.mappings + 20);
}

TEST_CASE("host memory: memory is taken although signals keep coming") {
  struct Timer {
    explicit Timer(int microseconds) {
      struct sigaction action {};
      action.sa_handler = [](int) {};  // no SA_RESTART
      sigaction(SIGALRM, &action, &old_);
      const itimerval every{{0, microseconds}, {0, microseconds}};
      setitimer(ITIMER_REAL, &every, nullptr);
    }
    ~Timer() {
      const itimerval never{};
      setitimer(ITIMER_REAL, &never, nullptr);
      sigaction(SIGALRM, &old_, nullptr);
    }
    struct sigaction old_ {};
  };
  const Timer timer(1000);
  const WindowBlock block(size_t{64} << 20);
  REQUIRE(block.data != nullptr);
  CHECK(block.data[(size_t{64} << 20) - 1] == 0);
}

TEST_CASE("windows: a part of a block, between threads") {
  CHECK(runOnThreads(3, [](int rank, Bootstrap& bootstrap) -> std::string {
          const WindowBlock block(100'000);
          if (block.data == nullptr) return "no memory";
          if (reinterpret_cast<uintptr_t>(block.data) % 64 != 0) return "not aligned";
          char* const buffer = block.data + ptrdiff_t{64} * rank + 5;  // other places on other ranks
          Result<Memory> window = mapHostWindow(bootstrap, buffer, 50'000, {});
          if (!window.ok()) return window.status().message();
          if (window.value()->peer(rank) != buffer) return "peer(own rank) is not the buffer";
          return checkContents(bootstrap, *window.value());
        }) == "");
}

TEST_CASE("windows: memory that is freed while registered stays readable") {
  CHECK(runOnThreads(2, [](int rank, Bootstrap& bootstrap) -> std::string {
          std::optional<WindowBlock> block(std::in_place, 4096);
          Result<Memory> window = mapHostWindow(bootstrap, block->data, 4096, {});
          if (!window.ok()) return window.status().message();
          if (std::string wrong = checkContents(bootstrap, *window.value()); !wrong.empty()) return wrong;
          if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
          block.reset();
          if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
          if (window.value()->peer(1 - rank)[9] != valueOf(1 - rank, 9)) return "the peer's value is gone";
          return window.value()->peer(rank)[9] == valueOf(rank, 9) ? "" : "the own value is gone";
        }) == "");
}

TEST_CASE("windows: other memory is refused on all ranks, whichever passes it") {
  static char global[8192];
  std::vector<char> heap(8192);
  char stack[8192];
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  const std::vector<void*> strangers{global,
                                     heap.data(),
                                     stack,
                                     mapped,
                                     nullptr,
                                     reinterpret_cast<void*>(uintptr_t{1}),
                                     reinterpret_cast<void*>(std::numeric_limits<uintptr_t>::max())};
  for (void* stranger : strangers) {
    for (int bad = 0; bad < 3; ++bad) {
      INFO(stranger << " at rank " << bad);
      CHECK(runOnThreads(3, [&](int rank, Bootstrap& bootstrap) {
              const WindowBlock block(8192);
              const Status status = mapHostWindow(bootstrap, rank == bad ? stranger : block.data, 4096, {}).status();
              return expectFailure(status, fcclInvalidArgument, {"not host memory of fcclMemAlloc"});
            }) == "");
    }
  }
  munmap(mapped, 8192);
}

TEST_CASE("windows: ranges and sizes are checked") {
  const auto fails = [](fcclResult_t code, std::string_view part, std::function<std::pair<size_t, size_t>(int)> range) {
    return runOnThreads(2, [&](int rank, Bootstrap& bootstrap) {
      const WindowBlock block(8192);
      const auto [offset, bytes] = range(rank);
      return expectFailure(mapHostWindow(bootstrap, block.data + offset, bytes, {}).status(), code, {part});
    });
  };
  using Range = std::pair<size_t, size_t>;
  CHECK(fails(fcclInvalidArgument, "size is 0", [](int) { return Range(0, 0); }) == "");
  CHECK(fails(fcclInvalidArgument, "reaches past", [](int) { return Range(0, 8193); }) == "");
  CHECK(fails(fcclInvalidArgument, "reaches past", [](int r) { return Range(r == 0 ? 0 : 1, 8192); }) == "");
  CHECK(fails(fcclInvalidArgument, "reaches past",
              [](int) { return Range(8, std::numeric_limits<size_t>::max() - 4); }) == "");
  CHECK(fails(fcclInvalidUsage, "same on all ranks", [](int r) { return Range(0, 4096 + static_cast<size_t>(r)); }) ==
        "");
}

TEST_CASE("windows: allocation and free check their arguments") {
  CHECK(allocateWindowMemory(0).status().code() == fcclInvalidArgument);
  CHECK(allocateWindowMemory(std::numeric_limits<size_t>::max()).status().code() == fcclInvalidArgument);
  CHECK(allocateWindowMemory(size_t{1} << 60).status().code() == fcclSystemError);
  int local = 0;
  CHECK(freeWindowMemory(&local).code() == fcclInvalidArgument);
  CHECK(freeWindowMemory(nullptr).code() == fcclInvalidArgument);
  Result<void*> block = allocateWindowMemory(1);
  REQUIRE(block.ok());
  CHECK(freeWindowMemory(static_cast<char*>(block.value()) + 1).code() == fcclInvalidArgument);
  CHECK(freeWindowMemory(block.value()).ok());
  CHECK(freeWindowMemory(block.value()).code() == fcclInvalidArgument);
}

TEST_CASE("numa: threads are bound inside what is allowed, one core each while there are enough") {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CHECK(allowedCores() == CPU_COUNT(&allowed));
  CHECK_FALSE(describe().empty());
  const auto boundTo = [](int rank, int ranks) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    std::string error;
    std::thread([&] {
      if (Status status = bindThisThread(rank, ranks); !status.ok()) error = status.message();
      sched_getaffinity(0, sizeof mine, &mine);
    }).join();
    CHECK(error == "");
    return mine;
  };
  cpu_set_t both;
  const cpu_set_t first = boundTo(0, 2);
  const cpu_set_t second = boundTo(1, 2);
  CPU_AND(&both, &first, &second);
  // Two processors may be one core.
  if (CPU_COUNT(&first) < CPU_COUNT(&allowed)) CHECK(CPU_COUNT(&both) == 0);
  for (int rank = 0; rank < 72; ++rank) {
    const cpu_set_t bound = boundTo(rank, 72);
    cpu_set_t outside;
    CPU_XOR(&outside, &bound, &allowed);
    CPU_AND(&outside, &outside, &bound);
    CHECK(CPU_COUNT(&bound) > 0);
    CHECK(CPU_COUNT(&outside) == 0);
  }
  CHECK(bindThisThread(2, 2).code() == fcclInvalidArgument);
  CHECK(bindThisThread(-1, 2).code() == fcclInvalidArgument);
  CHECK(bindThisThread(0, 0).code() == fcclInvalidArgument);
}

TEST_CASE("numa: a narrow affinity mask is respected") {
  std::thread([] {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &allowed)) --last;
    cpu_set_t narrow;
    CPU_ZERO(&narrow);
    CPU_SET(last, &narrow);
    if (sched_setaffinity(0, sizeof narrow, &narrow) != 0) std::abort();
    if (allowedCores() != 1) std::abort();
    for (int rank = 0; rank < 4; ++rank) {
      if (!bindThisThread(rank, 4).ok()) std::abort();
      cpu_set_t now;
      sched_getaffinity(0, sizeof now, &now);
      if (!CPU_EQUAL(&now, &narrow)) std::abort();
    }
  }).join();
}

TEST_CASE("process token: the same for all threads, another in a forked child") {
  const Result<ProcessToken> here = processToken();
  REQUIRE(here.ok());
  std::thread([&] {
    const Result<ProcessToken> there = processToken();
    if (!there.ok() || there.value() != here.value()) std::abort();
  }).join();
  CHECK(runInChild([&]() -> std::string {
          const Result<ProcessToken> child = processToken();
          return child.ok() && child.value() != here.value() ? "" : "the child has its parent's token";
        }) == "");
}

TEST_CASE("describeBytes is exact or says the number") {
  CHECK(describeBytes(0) == "0 bytes");
  CHECK(describeBytes(1023) == "1023 bytes");
  CHECK(describeBytes(1024) == "1 KiB");
  CHECK(describeBytes(1536) == "1.5 KiB (1536 bytes)");
  CHECK(describeBytes(uint64_t{3} << 30) == "3 GiB");
}
