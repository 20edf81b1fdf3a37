// Files that are read whole and replaced at once.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fccl {

// The first `most` bytes of the file at `path`. 0, or errno; a folder is EISDIR, a pipe, device or socket EINVAL.
int readFile(const std::string& path, size_t most, std::string* text);

// Readers find what was at `path` before, or all of `text`. Links are followed. 0, or errno; then nothing has changed
// and nothing is left behind; EINVAL where something else than a file is there.
int replaceFile(const std::string& path, std::string_view text);

// Of what the two return.
std::string fileErrorText(int error);

}  // namespace fccl
