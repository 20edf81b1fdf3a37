#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

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
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  int error = 0;
  text->resize(most);
  size_t done = 0;
  while (done < most) {
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

int replaceFile(const std::string& path, std::string_view text) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return errno;
  // Readable by all, as a file that is made in the usual way.
  bool good = writeAll(descriptor, text) && ::fchmod(descriptor, 0644) == 0;
  int error = good ? 0 : errno;
  ::close(descriptor);
  if (good && ::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
    good = false;
  }
  if (!good) ::unlink(temporary.c_str());
  return error;
}

}  // namespace fccl
