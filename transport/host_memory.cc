#include <sys/stat.h>

#include <algorithm>
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

struct Layout {
  size_t bytes;   // of one rank's allocation
  size_t stride;  // from one rank's to the next
  size_t total;
};

// One per process and group, shared by the ranks of the process.
struct Segment {
  Mapping mapping;
  std::optional<ProcessLocks> locks;  // none where all ranks are threads
  std::vector<int> leaders;           // by rank
};

class HostMemory final : public SymmetricMemory {
 public:
  HostMemory(std::shared_ptr<Segment> segment, const Layout& layout, int rank, std::string kind)
      : segment_(std::move(segment)), layout_(layout), rank_(rank), kind_(std::move(kind)) {}

  char* peer(int r) const override { return segment_->mapping.data() + static_cast<size_t>(r) * layout_.stride; }
  size_t bytes() const override { return layout_.bytes; }
  bool alive(int r) const override {
    const int leader = segment_->leaders[static_cast<size_t>(r)];
    return leader == segment_->leaders[static_cast<size_t>(rank_)] || segment_->locks->held(leader);
  }
  const char* kind() const override { return kind_.c_str(); }

 private:
  std::shared_ptr<Segment> segment_;
  Layout layout_;
  int rank_;
  std::string kind_;
};

// Whether the ranks ask for the same; the verdict needs no vote, since all look at the same numbers.
struct Request {
  uint64_t bytes;
  int32_t provider;
  int32_t unused;
};

const char* providerName(int provider) {
  return provider == fcclSharedMemoryMemfd ? "memfd" : provider == fcclSharedMemoryPosix ? "posix" : "auto";
}

Result<Layout> agreeOnLayout(Bootstrap& bootstrap, size_t bytesPerRank, const HostMemoryOptions& options) {
  FCCL_TRY_ASSIGN(const std::vector<Request> all, bootstrap.exchange(Request{bytesPerRank, options.provider, 0}));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].bytes != all[0].bytes) {
      return failure(fcclInvalidUsage,
                     "rank 0 asks for {} bytes of shared memory per rank and rank {} for {}; give all ranks the same "
                     "configuration (FCCL_SLOT_BYTES)",
                     all[0].bytes, r, all[r].bytes);
    }
    if (all[r].provider != all[0].provider) {
      return failure(fcclInvalidUsage, "rank 0 has FCCL_SHARED_MEMORY={} and rank {} has {}; set the same on all ranks",
                     providerName(all[0].provider), r, providerName(all[r].provider));
    }
  }
  if (bytesPerRank == 0) return failure(fcclInvalidArgument, "0 bytes of shared memory per rank; expected at least 1");
  Layout layout{bytesPerRank, 0, 0};
  // An odd number of pages: flags at the same place of each rank's part then do not fall into the same cache sets.
  if (!roundUpToPages(bytesPerRank, &layout.stride) ||
      __builtin_mul_overflow(layout.stride / pageBytes() | 1, pageBytes(), &layout.stride) ||
      __builtin_mul_overflow(layout.stride, all.size(), &layout.total)) {
    return failure(fcclInvalidArgument,
                   "{} bytes of shared memory for each of {} ranks are more than an address can count", bytesPerRank,
                   all.size());
  }
  return layout;
}

Verdict fileByMemfd(Bootstrap& bootstrap, const ProcessMap& processes, const Layout& layout, const Deadline& deadline,
                    Fd* file) {
  Status status;
  if (processes.rank() == 0) {
    Result<Fd> made = makeMemfd("fccl", layout.total);
    status = made.status();
    if (made.ok()) *file = std::move(made.value());
  }
  if (Verdict verdict = settle(bootstrap, status); !verdict.ok()) return verdict;
  PassedDescriptors got;
  const int mine = file->get();
  Verdict passed =
      passDescriptors(bootstrap, processes, {&mine, processes.rank() == 0 ? size_t{1} : size_t{0}}, deadline, &got);
  if (passed.ok() && processes.isLeader() && processes.rank() != 0) *file = std::move(got[0][0]);
  return passed;
}

Verdict fileByName(Bootstrap& bootstrap, const ProcessMap& processes, const Layout& layout, Fd* file) {
  struct Name {
    char text[48];
    uint64_t device;
    uint64_t inode;
  };
  struct stat identity {};
  Name mine{};
  NamedFile named;
  Status status;
  if (processes.rank() == 0) {
    status = [&]() -> Status {
      FCCL_TRY_ASSIGN(const std::string text, NamedFile::freshName());
      named = NamedFile(text);
      FCCL_TRY_ASSIGN(*file, named.create(layout.total));
      FCCL_SYS(::fstat(file->get(), &identity));
      std::copy(text.begin(), text.end(), mine.text);
      mine.device = identity.st_dev;
      mine.inode = identity.st_ino;
      return {};
    }();
  }
  if (Verdict verdict = settle(bootstrap, status); !verdict.ok()) return verdict;
  const Result<std::vector<Name>> names = bootstrap.exchange(mine);
  if (!names.ok()) return {names.status(), true};
  const Name& name = names.value()[0];
  if (processes.isLeader() && processes.rank() != 0) {
    status = [&]() -> Status {
      // The destructor removes the name here too, in case rank 0 is killed before it can.
      named = NamedFile(name.text);
      FCCL_TRY_ASSIGN(*file, named.open());
      FCCL_SYS(::fstat(file->get(), &identity));
      if (identity.st_dev == name.device && identity.st_ino == name.inode) return {};
      return failure(fcclSystemError, "/dev/shm/{} is not the file that rank 0 has made; ranks need the same /dev/shm",
                     name.text);
    }();
  }
  return settle(bootstrap, status);
}

// The file that all processes map, on their leaders.
Result<Fd> shareFile(Bootstrap& bootstrap, const ProcessMap& processes, const Layout& layout,
                     const HostMemoryOptions& options, const Deadline& deadline, const char** provider) {
  std::string reasons;
  if (options.provider != fcclSharedMemoryPosix) {
    Fd file;
    const Verdict verdict = fileByMemfd(bootstrap, processes, layout, deadline, &file);
    *provider = "memfd";
    if (verdict.ok()) return file;
    if (verdict.broken || options.provider == fcclSharedMemoryMemfd) {
      return failure(verdict.status.code(), "shared memory by memfd: {}", verdict.status.message());
    }
    reasons = fmt::format("by memfd: {}; ", verdict.status.message());
    FCCL_INFO("shared memory {}trying /dev/shm", reasons);
  }
  Fd file;
  const Verdict verdict = fileByName(bootstrap, processes, layout, &file);
  *provider = "posix";
  if (verdict.ok()) return file;
  return failure(verdict.status.code(), "shared memory {}by /dev/shm: {}", reasons, verdict.status.message());
}

// Takes the calling rank's pages, near it, and makes sure that they are there.
Status takeOwnPages(const Segment& segment, const Layout& layout, int rank, const HostMemoryOptions& options,
                    const Deadline& deadline) {
  const size_t offset = static_cast<size_t>(rank) * layout.stride;
  char* own = segment.mapping.data() + offset;
  if (options.numaLocal) placeOnThisNumaNode(own, layout.stride);
  FCCL_TRY(populate(own, layout.stride, !segment.locks));
  return segment.locks ? allocatePages(segment.locks->fd(), offset, layout.stride, deadline) : Status();
}

}  // namespace

Result<std::unique_ptr<SymmetricMemory>> createHostMemory(Bootstrap& bootstrap, size_t bytesPerRank,
                                                          const HostMemoryOptions& options) {
  const Deadline deadline(options.timeout);
  FCCL_TRY_ASSIGN(const ProcessMap processes, ProcessMap::exchange(bootstrap));
  FCCL_TRY_ASSIGN(const Layout layout, agreeOnLayout(bootstrap, bytesPerRank, options));
  const size_t localBytes = layout.stride * static_cast<size_t>(processes.localRanks());
  FCCL_TRY(settle(bootstrap, checkFreeMemory(localBytes, layout.total)).status);

  const bool threads = processes.oneProcess();
  const char* provider = "threads";
  Fd file;
  if (!threads) {
    FCCL_TRY_ASSIGN(file, shareFile(bootstrap, processes, layout, options, deadline, &provider));
  }
  const uint64_t space = namedFileSpace();

  std::shared_ptr<Segment> segment;
  Status status;
  if (processes.isLeader()) {
    status = [&]() -> Status {
      segment = std::make_shared<Segment>();
      for (int r = 0; r < processes.ranks(); ++r) segment->leaders.push_back(processes.leader(r));
      if (threads) {
        FCCL_TRY_ASSIGN(segment->mapping, Mapping::anonymous(layout.total));
      } else {
        FCCL_TRY_ASSIGN(segment->mapping, Mapping::shared(file.get(), 0, layout.total));
        FCCL_TRY_ASSIGN(segment->locks, ProcessLocks::take(std::move(file), processes.rank()));
      }
      preferHugePages(segment->mapping);
      return {};
    }();
  }
  FCCL_TRY(settle(bootstrap, status).status);
  FCCL_TRY_ASSIGN(const std::shared_ptr<void> shared, shareInProcess(bootstrap, processes, segment));
  segment = std::static_pointer_cast<Segment>(shared);

  status = takeOwnPages(*segment, layout, processes.rank(), options, deadline);
  if (const Verdict verdict = settle(bootstrap, status); !verdict.ok()) {
    const bool posix = std::string_view(provider) == "posix";
    return failure(verdict.status.code(),
                   "shared memory ({}) of {} per rank, {} for all {} ranks, could not be had{}: {}; {}make "
                   "FCCL_SLOT_BYTES smaller",
                   provider, describeBytes(layout.stride), describeBytes(layout.total), processes.ranks(),
                   posix ? fmt::format(" (/dev/shm had {} free)", describeBytes(space)) : "", verdict.status.message(),
                   posix ? "set FCCL_SHARED_MEMORY=memfd, which needs no /dev/shm, mount a larger /dev/shm, or " : "");
  }
  // All pages exist and lie where their ranks want them; now bring them into this process's page table.
  if (processes.isLeader() && !threads) (void)populate(segment->mapping.data(), layout.total, false);

  std::string kind = fmt::format("{}, NUMA node {}", provider, thisNumaNode());
  if (logLevel() >= LogLevel::kInfo) {
    kind += ", " + describePages(segment->mapping.data(), layout.total);
    FCCL_INFO("rank {} of {}: {} of shared memory per rank: {}", processes.rank(), processes.ranks(),
              describeBytes(layout.bytes), kind);
  }
  return std::unique_ptr<SymmetricMemory>(
      std::make_unique<HostMemory>(std::move(segment), layout, processes.rank(), std::move(kind)));
}

}  // namespace fccl
