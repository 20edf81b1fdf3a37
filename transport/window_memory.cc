#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "transport/fd_channel.h"
#include "transport/numa.h"
#include "transport/process_locks.h"
#include "transport/process_map.h"
#include "transport/shared_file.h"
#include "transport/symmetric_memory.h"

namespace fccl {
namespace {

struct Block {
  Fd file;
  Mapping mapping;
};

// The blocks of this process by their start.
class BlockTable {
 public:
  static BlockTable& instance() {
    static BlockTable table;
    return table;
  }

  void insert(std::shared_ptr<Block> block) {
    std::lock_guard lock(mutex_);
    blocks_.emplace(reinterpret_cast<uintptr_t>(block->mapping.data()), std::move(block));
  }
  // The block that starts at `ptr`, taken out.
  std::shared_ptr<Block> remove(const void* ptr) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(ptr));
    if (found == blocks_.end()) return nullptr;
    std::shared_ptr<Block> block = std::move(found->second);
    blocks_.erase(found);
    return block;
  }
  // The block that `ptr` points into.
  std::shared_ptr<Block> find(const void* ptr) {
    std::lock_guard lock(mutex_);
    const uintptr_t address = reinterpret_cast<uintptr_t>(ptr);
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return nullptr;
    const std::shared_ptr<Block>& block = (--next)->second;
    return address - next->first < block->mapping.bytes() ? block : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<Block>> blocks_;
};

// One per process and window, shared by the ranks of the process. Keeps the blocks of this process alive, so that
// memory that its owner frees while it is registered stays mapped, here and at the peers, until the window is given
// back.
struct Window {
  std::vector<char*> buffers;                  // by rank
  std::vector<std::shared_ptr<Block>> blocks;  // of this process's ranks
  std::vector<Mapping> mappings;               // of the others'
  std::optional<ProcessLocks> locks;
  std::vector<int> leaders;
};

class WindowMemory final : public SymmetricMemory {
 public:
  WindowMemory(std::shared_ptr<Window> window, size_t bytes, int rank)
      : window_(std::move(window)), bytes_(bytes), rank_(rank) {}

  char* peer(int r) const override { return window_->buffers[static_cast<size_t>(r)]; }
  size_t bytes() const override { return bytes_; }
  bool alive(int r) const override {
    const int leader = window_->leaders[static_cast<size_t>(r)];
    return leader == window_->leaders[static_cast<size_t>(rank_)] || window_->locks->held(leader);
  }
  const char* kind() const override { return window_->locks ? "memfd window" : "threads window"; }

 private:
  std::shared_ptr<Window> window_;
  size_t bytes_;
  int rank_;
};

struct Request {
  uint64_t bytes;
  uint64_t address;  // for ranks of the same process
  uint64_t offset;   // in the block, for the others
};

Result<std::shared_ptr<Block>> blockOf(const void* buffer, size_t bytes) {
  if (bytes == 0) return failure(fcclInvalidArgument, "size is 0; expected at least 1 byte");
  const std::shared_ptr<Block> block = BlockTable::instance().find(buffer);
  if (block == nullptr) {
    return failure(fcclInvalidArgument,
                   "buff is {}, which is not host memory of fcclMemAlloc (fcclMemAllocOn with fcclDeviceHost)", buffer);
  }
  const size_t offset = static_cast<size_t>(static_cast<const char*>(buffer) - block->mapping.data());
  if (bytes > block->mapping.bytes() - offset) {
    return failure(fcclInvalidArgument,
                   "buff {} with size {} reaches past its fcclMemAlloc block, which has {} bytes from there", buffer,
                   bytes, block->mapping.bytes() - offset);
  }
  return block;
}

// Maps the part of another process's block that the window covers.
Result<Mapping> mapPart(int fd, size_t offset, size_t bytes, char** buffer) {
  struct stat file {};
  FCCL_SYS(::fstat(fd, &file));
  const size_t start = offset / pageBytes() * pageBytes();
  const size_t length = offset - start + bytes;
  if (static_cast<size_t>(file.st_size) < start + length) {
    return failure(fcclInternalError, "a peer's window of {} bytes at {} is larger than its block of {}", bytes, offset,
                   file.st_size);
  }
  FCCL_TRY_ASSIGN(Mapping mapping, Mapping::shared(fd, start, length));
  *buffer = mapping.data() + (offset - start);
  preferHugePages(mapping);
  (void)populate(mapping.data(), length, false);
  return mapping;
}

}  // namespace

Result<void*> allocateWindowMemory(size_t bytes) {
  size_t rounded;
  if (bytes == 0) return failure(fcclInvalidArgument, "size is 0; expected at least 1 byte");
  if (!roundUpToPages(bytes, &rounded)) {
    return failure(fcclInvalidArgument, "size is {}, more than an address can count", bytes);
  }
  FCCL_TRY(checkFreeMemory(rounded, rounded));
  auto block = std::make_shared<Block>();
  FCCL_TRY_ASSIGN(block->file, makeMemfd("fccl-window", rounded));
  FCCL_TRY_ASSIGN(block->mapping, Mapping::shared(block->file.get(), 0, rounded));
  preferHugePages(block->mapping);
  placeOnThisNumaNode(block->mapping.data(), rounded);
  FCCL_TRY(populate(block->mapping.data(), rounded, false));
  FCCL_TRY(allocatePages(block->file.get(), 0, rounded, Deadline(std::chrono::milliseconds(0))));
  void* const data = block->mapping.data();
  BlockTable::instance().insert(std::move(block));
  return data;
}

Status freeWindowMemory(void* ptr) {
  if (BlockTable::instance().remove(ptr) != nullptr) return {};
  return failure(fcclInvalidArgument, "ptr is {}, which is not the start of memory of fcclMemAlloc, or has been freed",
                 ptr);
}

Result<std::unique_ptr<SymmetricMemory>> mapHostWindow(Bootstrap& bootstrap, void* buffer, size_t bytes,
                                                       const HostMemoryOptions& options) {
  const Deadline deadline(options.timeout);
  FCCL_TRY_ASSIGN(const ProcessMap processes, ProcessMap::exchange(bootstrap));
  const Result<std::shared_ptr<Block>> own = blockOf(buffer, bytes);
  FCCL_TRY(settle(bootstrap, own.status()).status);
  const std::shared_ptr<Block>& block = own.value();
  const Request mine{bytes, reinterpret_cast<uintptr_t>(buffer),
                     reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(block->mapping.data())};
  FCCL_TRY_ASSIGN(const std::vector<Request> all, bootstrap.exchange(mine));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].bytes != all[0].bytes) {
      return failure(fcclInvalidUsage, "size is {} on rank 0 and {} on rank {}; expected the same on all ranks",
                     all[0].bytes, all[r].bytes, r);
    }
  }

  PassedDescriptors got;
  Fd lockFile;
  if (!processes.oneProcess()) {
    Status status;
    std::vector<int> offered{block->file.get()};
    if (processes.rank() == 0) {
      // Not the lock of the block itself, since a block may be in several windows: see ProcessLocks.
      Result<Fd> made = makeMemfd("fccl-window-locks", 0);
      status = made.status();
      if (made.ok()) {
        lockFile = std::move(made.value());
        offered.push_back(lockFile.get());
      }
    }
    FCCL_TRY(settle(bootstrap, status).status);
    FCCL_TRY(passDescriptors(bootstrap, processes, offered, deadline, &got).status);
    if (processes.isLeader() && processes.rank() != 0) lockFile = std::move(got[0][1]);
  }

  std::shared_ptr<Window> window;
  Status status;
  if (processes.isLeader()) {
    status = [&]() -> Status {
      window = std::make_shared<Window>();
      for (int r = 0; r < processes.ranks(); ++r) {
        const Request& request = all[static_cast<size_t>(r)];
        window->leaders.push_back(processes.leader(r));
        char* peer = reinterpret_cast<char*>(static_cast<uintptr_t>(request.address));
        if (processes.sameProcess(r, processes.rank())) {
          FCCL_TRY_ASSIGN(std::shared_ptr<Block> local, blockOf(peer, request.bytes));
          window->blocks.push_back(std::move(local));
        } else {
          const int fd = got[static_cast<size_t>(r)][0].get();
          FCCL_TRY_ASSIGN(Mapping mapping, mapPart(fd, request.offset, request.bytes, &peer));
          window->mappings.push_back(std::move(mapping));
        }
        window->buffers.push_back(peer);
      }
      if (lockFile.valid()) {
        FCCL_TRY_ASSIGN(window->locks, ProcessLocks::take(std::move(lockFile), processes.rank()));
      }
      return {};
    }();
  }
  FCCL_TRY(settle(bootstrap, status).status);
  FCCL_TRY_ASSIGN(const std::shared_ptr<void> shared, shareInProcess(bootstrap, processes, window));
  window = std::static_pointer_cast<Window>(shared);
  FCCL_INFO("rank {} of {}: window of {} at {}, {}", processes.rank(), processes.ranks(), describeBytes(bytes), buffer,
            processes.oneProcess() ? "threads" : "memfd");
  return std::unique_ptr<SymmetricMemory>(std::make_unique<WindowMemory>(std::move(window), bytes, processes.rank()));
}

}  // namespace fccl
