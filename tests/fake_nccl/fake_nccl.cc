#include "tests/fake_nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

enum Code : int { kSuccess = 0, kInternal = 3, kInvalidArgument = 4, kInvalidUsage = 5 };

struct UniqueId {
  char bytes[128];
};

// The ranks of one communicator, and where they wait for each other.
struct Meeting {
  explicit Meeting(int ranks) : send(static_cast<size_t>(ranks)), count(ranks) {}
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  uint64_t turn = 0;
  bool aborted = false;
  std::vector<const void*> send;
  const int count;

  bool wait() {
    std::unique_lock lock(mutex);
    const uint64_t mine = turn;
    if (++arrived == count) {
      arrived = 0;
      turn++;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return turn != mine || aborted; });
    return !aborted;
  }
  void abort() {
    const std::lock_guard lock(mutex);
    aborted = true;
    changed.notify_all();
  }
};

struct Failing {
  int left = 0;
  int code = 0;
};

std::mutex mutex;
std::map<std::string, int> counts;
std::map<std::string, Failing> failing;
std::map<std::string, std::weak_ptr<Meeting>> meetings;
std::map<void*, size_t> blocks;
std::string lastError;
std::atomic<int> asyncError{0};
std::atomic<int> comms{0};
std::atomic<int> windows{0};
std::atomic<int> ids{0};
std::atomic<bool> refuseWindows{false};

int versionAsLoaded() {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  return text != nullptr ? std::atoi(text) : 22803;
}
std::atomic<int> version{versionAsLoaded()};

int fail(int code, const std::string& why) {
  const std::lock_guard lock(mutex);
  lastError = why;
  return code;
}

// Counts the call; not 0 where it is to fail.
int enter(const char* function) {
  const std::lock_guard lock(mutex);
  counts[function]++;
  const auto found = failing.find(function);
  if (found == failing.end() || --found->second.left != 0) return kSuccess;
  lastError = std::string("fake failure of ") + function;
  return found->second.code;
}

std::shared_ptr<Meeting> meet(const std::string& key, int ranks) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Meeting> meeting = meetings[key].lock();
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>(ranks);
    meetings[key] = meeting;
  }
  return meeting;
}

float fromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
uint16_t toBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
T combine(T a, T b, int op) {
  switch (op) {
    case 1: return static_cast<T>(a * b);
    case 2: return std::max(a, b);
    case 3: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <class T, class Wide, class Load, class Store>
std::vector<char> reduced(const std::vector<const void*>& from, size_t count, int op, Load load, Store store) {
  std::vector<char> result(count * sizeof(T));
  for (size_t i = 0; i < count; i++) {
    Wide total = load(static_cast<const T*>(from[0])[i]);
    for (size_t r = 1; r < from.size(); r++) total = combine<Wide>(total, load(static_cast<const T*>(from[r])[i]), op);
    if (op == 4) total = static_cast<Wide>(total / static_cast<Wide>(from.size()));
    reinterpret_cast<T*>(result.data())[i] = store(total);
  }
  return result;
}

template <class T>
std::vector<char> reducedPlain(const std::vector<const void*>& from, size_t count, int op) {
  const auto same = [](T v) { return v; };
  return reduced<T, T>(from, count, op, same, same);
}

// Empty: a type that it does not have.
std::vector<char> reduceAll(const std::vector<const void*>& from, size_t count, int dtype, int op) {
  switch (dtype) {
    case 0: return reducedPlain<int8_t>(from, count, op);
    case 1: return reducedPlain<uint8_t>(from, count, op);
    case 2: return reducedPlain<int32_t>(from, count, op);
    case 3: return reducedPlain<uint32_t>(from, count, op);
    case 4: return reducedPlain<int64_t>(from, count, op);
    case 5: return reducedPlain<uint64_t>(from, count, op);
    case 7: return reducedPlain<float>(from, count, op);
    case 8: return reducedPlain<double>(from, count, op);
    case 9: return reduced<uint16_t, float>(from, count, op, fromBf16, toBf16);
    default: return {};
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Meeting> meeting;
  std::string key;
  int rank;
  int splits = 0;
};

namespace {

// Inside a group calls wait for its end, each communicator's on a thread of its own.
struct Deferred {
  const void* lane;
  std::function<int()> run;
};
thread_local int depth = 0;
thread_local std::vector<Deferred> deferred;

int nowOrInGroup(const void* lane, std::function<int()> run) {
  if (depth == 0) return run();
  deferred.push_back({lane, std::move(run)});
  return kSuccess;
}

int init(ncclComm** comm, int ranks, const std::string& key, int rank) {
  auto made = std::make_unique<ncclComm>(ncclComm{meet(key, ranks), key, rank});
  if (!made->meeting->wait()) return fail(kInternal, "aborted");
  comms++;
  *comm = made.release();
  return kSuccess;
}

int allReduce(const void* in, void* out, size_t count, int dtype, int op, ncclComm* comm) {
  Meeting& meeting = *comm->meeting;
  meeting.send[static_cast<size_t>(comm->rank)] = in;
  if (!meeting.wait()) return fail(kInternal, "aborted");
  const std::vector<char> result = reduceAll(meeting.send, count, dtype, op);
  if (!meeting.wait()) return fail(kInternal, "aborted");
  if (result.empty() && count != 0) return fail(kInvalidArgument, "a type that this stand-in does not have");
  std::copy(result.begin(), result.end(), static_cast<char*>(out));
  return meeting.wait() ? kSuccess : fail(kInternal, "aborted");
}

int allGather(const void* in, void* out, size_t bytes, ncclComm* comm) {
  Meeting& meeting = *comm->meeting;
  meeting.send[static_cast<size_t>(comm->rank)] = in;
  if (!meeting.wait()) return fail(kInternal, "aborted");
  for (size_t r = 0; r < meeting.send.size(); r++) {
    char* to = static_cast<char*>(out) + r * bytes;
    if (to != meeting.send[r]) std::memcpy(to, meeting.send[r], bytes);
  }
  return meeting.wait() ? kSuccess : fail(kInternal, "aborted");
}

}  // namespace

FAKE_API void fakeNcclReset() {
  const std::lock_guard lock(mutex);
  counts.clear();
  failing.clear();
  lastError.clear();
  asyncError = 0;
  refuseWindows = false;
  version = versionAsLoaded();
}
FAKE_API void fakeNcclSetVersion(int wanted) { version = wanted; }
FAKE_API void fakeNcclFail(const char* function, int n, int code) {
  const std::lock_guard lock(mutex);
  failing[function] = {n, code};
}
FAKE_API void fakeNcclSetAsyncError(int code) { asyncError = code; }
FAKE_API void fakeNcclRefuseWindows(int refuse) { refuseWindows = refuse != 0; }
FAKE_API int fakeNcclCount(const char* function) {
  const std::lock_guard lock(mutex);
  return counts[function];
}
FAKE_API int fakeNcclLiveComms() { return comms; }
FAKE_API int fakeNcclLiveWindows() { return windows; }
FAKE_API int fakeNcclLiveBytes() {
  const std::lock_guard lock(mutex);
  size_t bytes = 0;
  for (const auto& block : blocks) bytes += block.second;
  return static_cast<int>(bytes);
}

FAKE_API int ncclGetVersion(int* result) {
  *result = version;
  return enter("ncclGetVersion");
}
FAKE_API const char* ncclGetErrorString(int code) { return code == kSuccess ? "no error" : "fake error"; }
FAKE_API const char* ncclGetLastError(ncclComm*) {
  thread_local std::string text;
  const std::lock_guard lock(mutex);
  text = lastError;
  return text.c_str();
}
FAKE_API int ncclGetUniqueId(UniqueId* id) {
  if (const int code = enter("ncclGetUniqueId"); code != 0) return code;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, sizeof id->bytes, "fake %d", ids++);
  return kSuccess;
}
FAKE_API int ncclCommInitRank(ncclComm** comm, int ranks, UniqueId id, int rank) {
  if (const int code = enter("ncclCommInitRank"); code != 0) return code;
  const std::string key(id.bytes);
  return nowOrInGroup(comm, [=] { return init(comm, ranks, key, rank); });
}
FAKE_API int ncclCommCount(ncclComm* comm, int* count) {
  *count = comm->meeting->count;
  return enter("ncclCommCount");
}
FAKE_API int ncclCommUserRank(ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return enter("ncclCommUserRank");
}
FAKE_API int ncclCommCuDevice(ncclComm* comm, int* device) {
  *device = comm->rank;
  return enter("ncclCommCuDevice");
}
FAKE_API int ncclCommGetAsyncError(ncclComm*, int* code) {
  *code = asyncError;
  return enter("ncclCommGetAsyncError");
}
FAKE_API int ncclCommDestroy(ncclComm* comm) {
  if (const int code = enter("ncclCommDestroy"); code != 0) return code;
  comms--;
  delete comm;
  return kSuccess;
}
FAKE_API int ncclCommAbort(ncclComm* comm) {
  if (const int code = enter("ncclCommAbort"); code != 0) return code;
  comm->meeting->abort();
  comms--;
  delete comm;
  return kSuccess;
}
FAKE_API int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, ncclComm* comm, void*) {
  if (const int code = enter("ncclAllReduce"); code != 0) return code;
  return nowOrInGroup(comm, [=] { return allReduce(in, out, count, dtype, op, comm); });
}
FAKE_API int ncclAllGather(const void* in, void* out, size_t count, int dtype, ncclComm* comm, void*) {
  if (const int code = enter("ncclAllGather"); code != 0) return code;
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return nowOrInGroup(comm, [=] { return allGather(in, out, count * kBytes[dtype], comm); });
}
FAKE_API int ncclCommInitRankConfig(ncclComm** comm, int ranks, UniqueId id, int rank, void*) {
  if (const int code = enter("ncclCommInitRankConfig"); code != 0) return code;
  const std::string key(id.bytes);
  return nowOrInGroup(comm, [=] { return init(comm, ranks, key, rank); });
}
// Every rank of the parent; a color below 0 gets none.
FAKE_API int ncclCommSplit(ncclComm* parent, int color, int key, ncclComm** comm, void*) {
  if (const int code = enter("ncclCommSplit"); code != 0) return code;
  *comm = nullptr;
  const int wish[2] = {color, key};
  std::vector<int> all(2 * static_cast<size_t>(parent->meeting->count));
  if (const int code = allGather(wish, all.data(), sizeof wish, parent); code != 0) return code;
  const int number = parent->splits++;
  if (color < 0) return kSuccess;
  int ranks = 0;
  int rank = 0;
  for (int r = 0; r < parent->meeting->count; r++) {
    const auto at = 2 * static_cast<size_t>(r);
    if (all[at] != color) continue;
    ranks++;
    if (all[at + 1] < key || (all[at + 1] == key && r < parent->rank)) rank++;
  }
  return init(comm, ranks, parent->key + "/" + std::to_string(number) + "/" + std::to_string(color), rank);
}
FAKE_API int ncclCommFinalize(ncclComm*) { return enter("ncclCommFinalize"); }
FAKE_API int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root, ncclComm* comm, void*) {
  if (const int code = enter("ncclBroadcast"); code != 0) return code;
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  const size_t bytes = count * kBytes[dtype];
  return nowOrInGroup(comm, [=] {
    std::vector<char> all(bytes * static_cast<size_t>(comm->meeting->count));
    if (const int code = allGather(in, all.data(), bytes, comm); code != 0) return code;
    std::memcpy(out, all.data() + static_cast<size_t>(root) * bytes, bytes);
    return static_cast<int>(kSuccess);
  });
}
FAKE_API int ncclMemAlloc(void** pointer, size_t bytes) {
  if (const int code = enter("ncclMemAlloc"); code != 0) return code;
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  const std::lock_guard lock(mutex);
  blocks[*pointer] = bytes;
  return kSuccess;
}
FAKE_API int ncclMemFree(void* pointer) {
  if (const int code = enter("ncclMemFree"); code != 0) return code;
  const std::lock_guard lock(mutex);
  if (blocks.erase(pointer) == 0) return kInvalidArgument;
  std::free(pointer);
  return kSuccess;
}
#ifndef FAKE_NCCL_WITHOUT_WINDOWS
FAKE_API int ncclCommWindowRegister(ncclComm* comm, void* buffer, size_t, void** window, int) {
  if (const int code = enter("ncclCommWindowRegister"); code != 0) return code;
  *window = nullptr;
  if (!comm->meeting->wait()) return fail(kInternal, "aborted");
  if (refuseWindows) return kSuccess;
  windows++;
  *window = buffer;
  return kSuccess;
}
FAKE_API int ncclCommWindowDeregister(ncclComm*, void*) {
  if (const int code = enter("ncclCommWindowDeregister"); code != 0) return code;
  windows--;
  return kSuccess;
}
#endif
FAKE_API int ncclGroupStart() {
  depth++;
  return enter("ncclGroupStart");
}
FAKE_API int ncclGroupEnd() {
  if (const int code = enter("ncclGroupEnd"); code != 0) return code;
  if (depth == 0) return fail(kInvalidUsage, "no group");
  if (--depth > 0) return kSuccess;
  std::vector<Deferred> calls;
  calls.swap(deferred);
  std::vector<const void*> lanes;
  for (const Deferred& call : calls) {
    if (std::find(lanes.begin(), lanes.end(), call.lane) == lanes.end()) lanes.push_back(call.lane);
  }
  std::atomic<int> worst{kSuccess};
  std::vector<std::thread> threads;
  for (const void* lane : lanes) {
    threads.emplace_back([&, lane] {
      for (const Deferred& call : calls) {
        if (call.lane != lane) continue;
        if (const int code = call.run(); code != 0) worst = code;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return worst;
}
