// Memory that can be shared: files without a name (memfd) or with one for a moment (/dev/shm), mappings, and pages that
// are there before they are touched.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/status.h"
#include "transport/socket.h"

namespace fccl {

size_t pageBytes();
// Up to a multiple of the page size; false on overflow.
bool roundUpToPages(size_t bytes, size_t* rounded);

// Anonymous memory of a fixed size: nobody who gets the descriptor can shrink it under the feet of the others.
Result<Fd> makeMemfd(const char* label, size_t bytes);

// The name of a file in /dev/shm for the short time in which ranks open it; the destructor removes it. The file is
// locked (see ProcessLocks) as rank 0 before it gets the name, so a named file without a lock is one whose makers were
// killed.
class NamedFile {
 public:
  NamedFile() = default;
  explicit NamedFile(std::string name);
  NamedFile(NamedFile&& other) noexcept : name_(std::exchange(other.name_, {})) {}
  NamedFile& operator=(NamedFile&& other) noexcept {
    std::swap(name_, other.name_);
    return *this;
  }
  ~NamedFile();

  static Result<std::string> freshName();
  // Before that, removes what killed jobs of this user have left.
  Result<Fd> create(size_t bytes) const;
  Result<Fd> open() const;

 private:
  std::string name_;
};

// Free bytes of /dev/shm, or 0.
uint64_t namedFileSpace();

// Makes every page of [offset, offset + bytes) exist. A signal only delays it.
Status allocatePages(int fd, size_t offset, size_t bytes, const Deadline& deadline);

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Zeroed memory of this process. Aligned to 2 MiB where that large, as the shared form is by the kernel.
  static Result<Mapping> anonymous(size_t bytes);
  static Result<Mapping> shared(int fd, size_t offset, size_t bytes);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(char* data, size_t bytes) : data_(data), bytes_(bytes) {}
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Wishes for huge pages under a mapping whose pages do not exist yet.
void preferHugePages(const Mapping& mapping);

// Brings the pages of a range in, for writing. Best effort where the memory is shared, since allocatePages makes sure;
// with `mustHave` a failure is an error.
Status populate(char* data, size_t bytes, bool mustHave);

// "4 KiB pages" or "N% huge pages" as /proc/self/smaps has it. Walks the page tables of the whole process: for logs
// only.
std::string describePages(const char* data, size_t bytes);

}  // namespace fccl
