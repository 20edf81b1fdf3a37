// Where the tuner makes its calls: apart from the caller's streams and data, and with a clock.
#pragma once

#include <cstddef>
#include <functional>

#include "base/status.h"

namespace fccl {

class Bench {
 public:
  // Makes one call on `stream`, on buffers of one of several sets.
  using Call = std::function<Status(fcclStream_t stream, int set)>;

  virtual ~Bench() = default;

  // Of the last-level cache, as far as this rank may use it.
  virtual size_t cacheBytes() const = 0;

  // Memory of the device that can be registered as a window, filled with small numbers; the bench's own, once.
  virtual Result<char*> allocate(size_t bytes) = 0;

  // A burst of `calls` calls that follow each other, each on the next of `sets` sets, made ready. Its number, from 0.
  virtual Result<int> add(const Call& call, int calls, int sets) = 0;
  // Microseconds per call of one run of a burst, after a call in which the ranks meet. All ranks run the same bursts in
  // the same order, and add and clear none meanwhile.
  virtual Result<double> run(int burst) = 0;
  virtual void clear() = 0;
};

}  // namespace fccl
