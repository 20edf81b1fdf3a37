// How ranks find each other before they share memory: a TCP rendezvous at rank 0, then a ring.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace fccl {

struct BootstrapTestHooks;

struct BootstrapOptions {
  std::chrono::milliseconds timeout{120'000};  // for each call as a whole; 0: no limit
  std::string interface;                       // as FCCL_SOCKET_IFNAME; empty: choose
  std::string rendezvous;                      // "host:port" in place of the address in the id; empty: the id's
  const BootstrapTestHooks* hooks = nullptr;   // tests only
};

class Bootstrap {
 public:
  // Opens rank 0's listener and writes its address and a random secret into `id`. The listener waits in a process-wide
  // table (a cache that says so: it lives from here to rank 0's connect) and is closed there after the rendezvous.
  static Status createId(const BootstrapOptions& options, fcclUniqueId* id);

  // Collective over `ranks` ranks. fcclSystemError at the time limit, with the ranks that are missing; fcclInvalidUsage
  // on every rank where an id is used a second time, a rank number twice, or with different rank counts.
  static Result<std::unique_ptr<Bootstrap>> connect(const fcclUniqueId& id, int rank, int ranks,
                                                    const BootstrapOptions& options);

  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Collective. `all` holds ranks() blocks of `bytes` bytes each; the own block, at all + rank() * bytes, is the input.
  virtual Status allGather(void* all, size_t bytes) = 0;
  virtual Status barrier() = 0;

  // Collective: success where `mine` is success on every rank, else the failure of the lowest rank that has one, on
  // every rank, prefixed by "rank N: " on the others. So no rank goes on alone.
  virtual Status agree(const Status& mine) = 0;

  // Makes a call that is under way, on any thread, return fcclInvalidUsage, and every later one.
  virtual void abort() = 0;

  template <class T>
  Result<std::vector<T>> exchange(const T& mine) {
    std::vector<T> all(static_cast<size_t>(ranks()));
    all[static_cast<size_t>(rank())] = mine;
    if (Status status = allGather(all.data(), sizeof(T)); !status.ok()) return status;
    return all;
  }
};

}  // namespace fccl
