#include "transport/shared_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/log.h"
#include "transport/machine.h"
#include "transport/process_locks.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fccl {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr char kDirectory[] = "/dev/shm";
constexpr char kPrefix[] = "fccl-";
constexpr size_t kNameLength = sizeof kPrefix - 1 + 32;

// Names that this process uses now. To open and close such a file once more would drop this process's locks on it.
struct NamesInUse {
  std::mutex mutex;
  std::set<std::string> names;
};

NamesInUse& namesInUse() {
  static NamesInUse names;
  return names;
}

// Growing a file past RLIMIT_FSIZE is a deadly signal, so it is asked before.
Status resize(int fd, size_t bytes) {
  rlimit limit{};
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max()) / 2) {
    return failure(fcclSystemError, "{} bytes of shared memory are more than the system can address", bytes);
  }
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return failure(fcclSystemError,
                   "{} bytes of shared memory are needed, but the limit on file sizes (ulimit -f) is {} bytes", bytes,
                   limit.rlim_cur);
  }
  FCCL_SYS(::ftruncate(fd, static_cast<off_t>(bytes)));
  return {};
}

std::string pathOf(const std::string& name) { return fmt::format("{}/{}", kDirectory, name); }

void removeLeftovers() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kDirectory), ::closedir);
  if (directory == nullptr) return;
  std::lock_guard lock(namesInUse().mutex);
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name.size() != kNameLength || name.rfind(kPrefix, 0) != 0 || namesInUse().names.count(name) != 0) continue;
    const Fd fd(::open(pathOf(name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat file {};
    if (!fd.valid() || ::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid()) continue;
    if (anyRankLocked(fd.get())) continue;
    if (::unlink(pathOf(name).c_str()) == 0)
      FCCL_INFO("removed {}, left behind by a job that was killed", pathOf(name));
  }
}

}  // namespace

size_t pageBytes() {
  static const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

bool roundUpToPages(size_t bytes, size_t* rounded) {
  size_t sum;
  if (__builtin_add_overflow(bytes, pageBytes() - 1, &sum)) return false;
  *rounded = sum / pageBytes() * pageBytes();
  return true;
}

Result<Fd> makeMemfd(const char* label, size_t bytes) {
  // Kernels with vm.memfd_noexec=2 insist on the flag, those before 6.3 do not know it.
  Fd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd = Fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failure(fcclSystemError, "memfd_create failed: {}", std::strerror(errno));
  FCCL_TRY(resize(fd.get(), bytes));
  FCCL_SYS(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  return fd;
}

NamedFile::NamedFile(std::string name) : name_(std::move(name)) {
  std::lock_guard lock(namesInUse().mutex);
  namesInUse().names.insert(name_);
}

NamedFile::~NamedFile() {
  if (name_.empty()) return;
  (void)::unlink(pathOf(name_).c_str());
  std::lock_guard lock(namesInUse().mutex);
  namesInUse().names.erase(name_);
}

Result<std::string> NamedFile::freshName() {
  FCCL_TRY_ASSIGN(const std::string random, randomName());
  return kPrefix + random;
}

Result<Fd> NamedFile::create(size_t bytes) const {
  removeLeftovers();
  Fd fd(::open(kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) return failure(fcclSystemError, "cannot create a file in {}: {}", kDirectory, std::strerror(errno));
  FCCL_SYS(::fchmod(fd.get(), 0600));
  FCCL_TRY(resize(fd.get(), bytes));
  FCCL_TRY(lockRank(fd.get(), 0));
  const std::string self = fmt::format("/proc/self/fd/{}", fd.get());
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, pathOf(name_).c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return failure(fcclSystemError, "cannot give a file in {} its name: {}", kDirectory, std::strerror(errno));
  }
  return fd;
}

Result<Fd> NamedFile::open() const {
  Fd fd(::open(pathOf(name_).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    return failure(fcclSystemError, "cannot open {}: {}; all ranks need the same {} and the same user", pathOf(name_),
                   std::strerror(errno), kDirectory);
  }
  return fd;
}

uint64_t namedFileSpace() {
  struct statvfs space {};
  return ::statvfs(kDirectory, &space) == 0 ? uint64_t{space.f_bavail} * space.f_frsize : 0;
}

Status allocatePages(int fd, size_t offset, size_t bytes, const Deadline& deadline) {
  // In steps, since the kernel undoes an interrupted one: a process with a profiler's timer would never get through.
  for (size_t done = 0; done < bytes;) {
    const size_t step = std::min(bytes - done, kHugePage);
    if (::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      const int error = errno;
      return failure(fcclSystemError, "fallocate of {} bytes failed: {}", bytes, std::strerror(error));
    } else if (deadline.passed()) {
      return failure(fcclSystemError, "fallocate of {} bytes was interrupted by signals up to the time limit", bytes);
    }
  }
  return {};
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<Mapping> Mapping::anonymous(size_t bytes) {
  size_t rounded;
  size_t reserved;
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  if (!roundUpToPages(bytes, &rounded) || __builtin_add_overflow(rounded, slack, &reserved)) {
    return failure(fcclSystemError, "{} bytes of memory are more than the system can address", bytes);
  }
  void* made = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return failure(fcclSystemError, "mmap of {} bytes failed: {}", bytes, std::strerror(errno));
  char* data = static_cast<char*>(made);
  if (slack > 0) {
    const size_t front = (kHugePage - reinterpret_cast<uintptr_t>(data) % kHugePage) % kHugePage;
    if (front > 0) ::munmap(data, front);
    if (slack > front) ::munmap(data + front + rounded, slack - front);
    data += front;
  }
  return Mapping(data, rounded);
}

Result<Mapping> Mapping::shared(int fd, size_t offset, size_t bytes) {
  void* made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (made == MAP_FAILED) return failure(fcclSystemError, "mmap of {} bytes failed: {}", bytes, std::strerror(errno));
  return Mapping(static_cast<char*>(made), bytes);
}

void preferHugePages(const Mapping& mapping) { (void)::madvise(mapping.data(), mapping.bytes(), MADV_HUGEPAGE); }

Status populate(char* data, size_t bytes, bool mustHave) {
  int result;
  do {
    result = ::madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0 || !mustHave) return {};
  if (errno != EINVAL)
    return failure(fcclSystemError, "{} bytes of memory could not be had: {}", bytes, std::strerror(errno));
  // A kernel before 5.14: touch each page. Nobody else has the memory yet.
  for (size_t i = 0; i < bytes; i += pageBytes()) static_cast<volatile char*>(data)[i] = 0;
  return {};
}

std::string describePages(const char* data, size_t bytes) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  size_t huge = 0;
  bool inside = false;
  while (std::getline(maps, line)) {
    uintptr_t start;
    uintptr_t end;
    char dash;
    std::istringstream range(line);
    if (range >> std::hex >> start >> dash >> end && dash == '-') {
      const uintptr_t first = reinterpret_cast<uintptr_t>(data);
      inside = start < first + bytes && end > first;
      continue;
    }
    std::istringstream field(line);
    std::string name;
    size_t kib;
    if (inside && field >> name >> kib && (name == "AnonHugePages:" || name == "ShmemPmdMapped:")) huge += kib * 1024;
  }
  if (huge == 0) return fmt::format("{} pages", pageBytes() == 4096 ? "4 KiB" : fmt::format("{} bytes", pageBytes()));
  return fmt::format("{}% in huge pages", std::min<size_t>(100, huge * 100 / bytes));
}

}  // namespace fccl
