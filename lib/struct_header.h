// The first three fields of every struct that a caller hands in: size, magic, version.
#pragma once

#include <cstring>
#include <span>

#include "base/status.h"

namespace fccl {

// A later version only adds fields at the end.
struct StructVersion {
  unsigned int version;
  size_t size;
};

// `known`: the versions that this library takes, oldest first; the last is its header's. Versions and sizes go
// together: a struct that claims our version and another size is not one of ours, and a later version may mean
// something that we do not know.
template <class Struct>
Status checkHeader(const Struct& value, const char* type, const char* initializer, unsigned int magic,
                   std::span<const StructVersion> known) {
  if (value.magic != magic) {
    return failure(fcclInvalidArgument, "{}.magic is {:#x}, not {:#x}; start from {}.", type, value.magic, magic,
                   initializer);
  }
  for (const StructVersion& each : known) {
    if (value.version != each.version) continue;
    if (value.size == each.size) return {};
    return failure(fcclInvalidArgument, "{}.size is {}; version {} has {} bytes. Start from {}.", type, value.size,
                   value.version, each.size, initializer);
  }
  return failure(
      fcclInvalidArgument, "{}.version is {}; this library knows version {}{}. Use the fccl.h of this library.", type,
      value.version, known.size() == 1 ? "" : fmt::format("{} to ", known.front().version), known.back().version);
}

// The caller's struct, whose header is right or not, over `initial`: not a byte more of it than it has.
template <class Struct>
Struct copyStruct(const Struct& value, const Struct& initial) noexcept {
  constexpr size_t kHeader = sizeof(value.size) + sizeof(value.magic) + sizeof(value.version);
  Struct copy = initial;
  const bool whole = value.size >= kHeader && value.size <= sizeof(Struct);
  std::memcpy(&copy, &value, whole ? value.size : kHeader);
  return copy;
}

}  // namespace fccl
