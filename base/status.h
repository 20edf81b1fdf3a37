// How errors travel inside FCCL: a Status carries a result code and a sentence that names what was wrong, its value and
// the cure. It becomes an fcclResult_t only in lib/.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fccl.h"

namespace fccl {

class [[nodiscard]] Status {
 public:
  Status() = default;  // success; no allocation
  Status(fcclResult_t code, std::string message)
      : error_(std::make_shared<const Error>(Error{code, std::move(message)})) {}

  bool ok() const { return error_ == nullptr; }
  fcclResult_t code() const { return error_ ? error_->code : fcclSuccess; }
  // Empty on success.
  const std::string& message() const {
    static const std::string empty;
    return error_ ? error_->message : empty;
  }

 private:
  struct Error {
    fcclResult_t code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

template <class... Args>
Status failure(fcclResult_t code, fmt::format_string<Args...> text, Args&&... args) {
  return Status(code, fmt::format(text, std::forward<Args>(args)...));
}

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fccl
