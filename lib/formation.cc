#include "lib/formation.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/side_by_side.h"
#include "transport/cuda_device.h"

namespace fccl {
namespace {

struct Choice {
  int color;
  int key;
};

struct Group {
  std::vector<int> members;  // old ranks in the order of the new ones
  int rank = 0;              // this rank's new number
  int root() const { return members.front(); }
};

Group groupOf(const std::vector<Choice>& choices, int rank) {
  const auto at = [&](int r) { return choices[static_cast<size_t>(r)]; };
  Group group;
  for (int r = 0; r < static_cast<int>(choices.size()); r++) {
    if (at(r).color == at(rank).color) group.members.push_back(r);
  }
  std::stable_sort(group.members.begin(), group.members.end(), [&](int a, int b) { return at(a).key < at(b).key; });
  const auto self = std::find(group.members.begin(), group.members.end(), rank);
  group.rank = static_cast<int>(self - group.members.begin());
  return group;
}

// create() for a thread's main function, from which no exception may leave.
Result<std::unique_ptr<Communicator>> createOnThread(const fcclUniqueId& id, int rank, int ranks,
                                                     const Options& options) {
  try {
    return Communicator::create(id, rank, ranks, options);
  } catch (const std::exception& error) {
    return failure(fcclSystemError, "rank {} could not be made: {}.", rank, error.what());
  }
}

// The GPU of each rank; HOST and a GPU that is named: all as `options` has it.
Result<std::vector<Options>> spreadOverDevices(int ranks, Options options) {
  const bool named = options.cudaDevice >= 0;
  FCCL_TRY(chooseDevice(&options));
  std::vector<Options> each(static_cast<size_t>(ranks), options);
  if (options.deviceType != fcclDeviceCuda || named) return each;
  FCCL_TRY_ASSIGN(const int devices, cudaDeviceCount());
  if (ranks > devices && !options.allowSharedDevice) {
    return failure(
        fcclInvalidUsage,
        "nranks is {}, and this process sees {} GPU{}; use fewer ranks, HOST (deviceType, FCCL_DEVICE=host), "
        "or for tests allow several ranks on one GPU with allowSharedDevice (FCCL_ALLOW_SHARED_DEVICE=1).",
        ranks, devices, devices == 1 ? "" : "s");
  }
  for (int r = 0; r < ranks; r++) {
    Options& mine = each[static_cast<size_t>(r)];
    mine.cudaDevice = r % devices;
    FCCL_TRY(chooseDevice(&mine));
  }
  return each;
}

}  // namespace

Status checkRanks(int ranks, int rank) {
  if (ranks < 1 || ranks > host::kMaxRanks) {
    return failure(fcclInvalidArgument, "nranks is {}; it must be from 1 to {}.", ranks, host::kMaxRanks);
  }
  if (rank < 0 || rank >= ranks) {
    return failure(fcclInvalidArgument, "rank is {}; with nranks {} it must be from 0 to {}.", rank, ranks, ranks - 1);
  }
  return {};
}

Result<std::vector<std::unique_ptr<Communicator>>> formInOneProcess(int ranks, const Options& wish) {
  Options options = wish;
  // The threads made here are not those that will drive the ranks.
  if (options.bindCores)
    FCCL_WARN("bindCores has no effect in fcclCommInitAll: bind the threads that drive the ranks.");
  options.bindCores = false;
  options.rendezvous.clear();
  FCCL_TRY_ASSIGN(const std::vector<Options> each, spreadOverDevices(ranks, options));

  fcclUniqueId id;
  std::vector<std::optional<Result<std::unique_ptr<Communicator>>>> made(static_cast<size_t>(ranks));
  FCCL_TRY(runSideBySide(
      made.size(), [&] { return Bootstrap::createId(options.bootstrap(), &id); },
      [&](size_t r) { made[r] = createOnThread(id, static_cast<int>(r), ranks, each[r]); }));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (auto& result : made) {
    FCCL_TRY(result->status());
    communicators.push_back(std::move(result->value()));
  }
  return communicators;
}

Status checkColor(int color) {
  if (color >= 0 || color == FCCL_SPLIT_NOCOLOR) return {};
  return failure(fcclInvalidArgument, "color is {}; it must be >= 0 or FCCL_SPLIT_NOCOLOR ({}).", color,
                 FCCL_SPLIT_NOCOLOR);
}

Result<std::unique_ptr<Communicator>> split(Communicator& parent, int color, int key, const Result<Options>& wish) {
  Bootstrap& bootstrap = parent.bootstrap();
  FCCL_TRY(bootstrap.agree(wish.ok() ? checkColor(color) : wish.status()));
  Options options = wish.value();
  // A fixed address serves one group, and there may be several now; so does a communicator of the caller's.
  options.rendezvous.clear();
  options.ncclComm = nullptr;

  FCCL_TRY_ASSIGN(const std::vector<Choice> choices, bootstrap.exchange(Choice{color, key}));
  const Group group = groupOf(choices, parent.rank());
  fcclUniqueId id{};
  const bool isRoot = color != FCCL_SPLIT_NOCOLOR && group.root() == parent.rank();
  FCCL_TRY(bootstrap.agree(isRoot ? Bootstrap::createId(options.bootstrap(), &id) : Status()));
  FCCL_TRY_ASSIGN(const std::vector<fcclUniqueId> ids, bootstrap.exchange(id));
  if (color == FCCL_SPLIT_NOCOLOR) return std::unique_ptr<Communicator>();

  // From here on the colors have nothing to do with each other.
  return Communicator::create(ids[static_cast<size_t>(group.root())], group.rank,
                              static_cast<int>(group.members.size()), options);
}

}  // namespace fccl
