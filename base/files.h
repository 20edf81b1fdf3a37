// Files that are read whole and replaced at once.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fccl {

// The first `most` bytes at `path`. 0, or errno; a folder is EISDIR.
int readFile(const std::string& path, size_t most, std::string* text);

// Readers find what was at `path` before, or all of `text`. 0, or errno; then nothing has changed and nothing is left
// behind.
int replaceFile(const std::string& path, std::string_view text);

}  // namespace fccl
