#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace fccl {
namespace {

bool writeAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

int readFile(const std::string& path, size_t most, std::string* text) {
  // A pipe without a writer would otherwise be waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return errno;
  struct stat facts {};
  int error = ::fstat(descriptor, &facts) != 0 ? errno
              : S_ISDIR(facts.st_mode)         ? EISDIR
              : S_ISREG(facts.st_mode)         ? 0
                                               : EINVAL;
  // /proc has files whose size is 0 until they are read.
  if (facts.st_size > 0) most = std::min(most, static_cast<size_t>(facts.st_size));
  text->resize(error == 0 ? most : 0);
  size_t done = 0;
  while (error == 0 && done < most) {
    const ssize_t count = ::read(descriptor, text->data() + done, most - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) error = errno;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  text->resize(done);
  ::close(descriptor);
  return error;
}

std::string fileErrorText(int error) {
  return error == EINVAL ? "it is a pipe, a device or a socket, and no file" : std::strerror(error);
}

int replaceFile(const std::string& path, std::string_view text) {
  std::string target = path;
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0) {
    if (!S_ISREG(facts.st_mode)) return S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), ::free);
    if (real == nullptr) return errno;
    target = real.get();
  }
  std::string temporary = target + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return errno;
  // Readable by all, as a file that is made in the usual way.
  bool good = writeAll(descriptor, text) && ::fchmod(descriptor, 0644) == 0;
  int error = good ? 0 : errno;
  ::close(descriptor);
  if (good && ::rename(temporary.c_str(), target.c_str()) != 0) {
    error = errno;
    good = false;
  }
  if (!good) ::unlink(temporary.c_str());
  return error;
}

}  // namespace fccl
