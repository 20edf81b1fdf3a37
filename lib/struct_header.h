// The first three fields of every struct that a caller hands in: size, magic, version.
#pragma once

#include "base/status.h"

namespace fccl {

// `size` is what this library's header gives the struct. Versions and sizes go together: a struct that claims our
// version and another size is not one of ours, and a later version may mean something that we do not know.
template <class Struct>
Status checkHeader(const Struct& value, const char* type, const char* initializer, unsigned int magic,
                   unsigned int version) {
  if (value.size == sizeof(Struct) && value.magic == magic && value.version == version) return {};
  if (value.magic != magic) {
    return failure(fcclInvalidArgument, "{}.magic is {:#x}, not {:#x}; start from {}.", type, value.magic, magic,
                   initializer);
  }
  if (value.version != version) {
    return failure(fcclInvalidArgument,
                   "{}.version is {}; this library knows version {}. Use the fccl.h of this library.", type,
                   value.version, version);
  }
  return failure(fcclInvalidArgument, "{}.size is {}; version {} has {} bytes. Start from {}.", type, value.size,
                 version, sizeof(Struct), initializer);
}

}  // namespace fccl
