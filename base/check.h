// The check macros: one for our own Status, one for system calls. Each returns from the enclosing function.
#pragma once

#include <cerrno>
#include <cstring>

#include "base/status.h"

// Returns the Status of `expr` if it is an error.
#define FCCL_TRY(expr)                                                  \
  do {                                                                  \
    if (::fccl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (0)

// `target = value of expr`, or returns its Status. `expr` is a Result<T>; `target` may declare a variable.
#define FCCL_TRY_ASSIGN(target, expr) FCCL_TRY_ASSIGN_(target, expr, FCCL_JOIN_(result_, __LINE__))
#define FCCL_TRY_ASSIGN_(target, expr, name) \
  auto name = (expr);                        \
  if (!name.ok()) return name.status();      \
  target = std::move(name.value())
#define FCCL_JOIN_(a, b) FCCL_JOIN2_(a, b)
#define FCCL_JOIN2_(a, b) a##b

// A system call that returns a negative number or sets errno on failure. `expr` is evaluated once.
#define FCCL_SYS(expr)                                                                                             \
  do {                                                                                                             \
    if ((expr) < 0) {                                                                                              \
      return ::fccl::failure(fcclSystemError, "{} failed: {} ({}:{})", #expr, std::strerror(errno), __FILE_NAME__, \
                             __LINE__);                                                                            \
    }                                                                                                              \
  } while (0)

#ifndef __FILE_NAME__
#define __FILE_NAME__ __FILE__
#endif
