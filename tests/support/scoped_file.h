#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace fccl::test {

// A file of a test, gone when it ends. Not made here.
class ScopedFile {
 public:
  explicit ScopedFile(const char* name)
      : path_((std::filesystem::temp_directory_path() / fmt::format("fccl-test-{}-{}", ::getpid(), name)).string()) {}
  ~ScopedFile() { std::filesystem::remove_all(path_); }
  ScopedFile(const ScopedFile&) = delete;
  ScopedFile& operator=(const ScopedFile&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string read() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

}  // namespace fccl::test
