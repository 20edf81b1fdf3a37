#include "tests/support/bootstrap_ranks.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace fccl::test {
namespace {

// A byte that depends on the rank, the place and the round.
char pattern(int rank, size_t index, int round) {
  return static_cast<char>(static_cast<size_t>(rank) * 131 + index * 7 + index / 251 + static_cast<size_t>(round) * 29);
}

}  // namespace

bool BootstrapGroup::allOk() const {
  for (const Status& status : statuses) {
    if (!status.ok()) return false;
  }
  return true;
}

std::string BootstrapGroup::text() const {
  std::string text;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].ok()) continue;
    text += fmt::format("rank {}: ({}) {}\n", rank, static_cast<int>(statuses[rank].code()), statuses[rank].message());
  }
  return text;
}

void BootstrapGroup::run(std::string_view what, const std::function<void(Bootstrap&)>& body, Seconds limit) {
  runThreads(static_cast<int>(members.size()), what, limit, [&](int rank) {
    if (const auto& member = members[static_cast<size_t>(rank)]) body(*member);
  });
}

BootstrapOptions bootstrapOptions(std::chrono::milliseconds timeout) {
  BootstrapOptions options;
  options.timeout = timeout * static_cast<int>(slowness());
  return options;
}

fcclUniqueId newId(const BootstrapOptions& options) {
  fcclUniqueId id;
  const Status status = Bootstrap::createId(options, &id);
  if (status.ok()) return id;
  std::fprintf(stderr, "createId: %s\n", status.message().c_str());
  std::abort();
}

BootstrapGroup connectWith(int ranks, std::string_view what, const ConnectRank& connect, Seconds limit) {
  BootstrapGroup group;
  group.members.resize(static_cast<size_t>(ranks));
  group.statuses.resize(static_cast<size_t>(ranks));
  runThreads(ranks, what, limit, [&](int rank) {
    Result<std::unique_ptr<Bootstrap>> result = connect(rank);
    group.statuses[static_cast<size_t>(rank)] = result.status();
    if (result.ok()) group.members[static_cast<size_t>(rank)] = std::move(result.value());
  });
  return group;
}

BootstrapGroup connectRanks(int ranks, const fcclUniqueId& id, const BootstrapOptions& options, Seconds limit) {
  return connectWith(
      ranks, "connect", [&](int rank) { return Bootstrap::connect(id, rank, ranks, options); }, limit);
}

void checkAllGather(Bootstrap& bootstrap, size_t bytes, int round, Failures* failures) {
  const size_t ranks = static_cast<size_t>(bootstrap.ranks());
  std::vector<char> all(ranks * bytes + 16, '\x5a');
  for (size_t i = 0; i < bytes; ++i) {
    all[static_cast<size_t>(bootstrap.rank()) * bytes + i] = pattern(bootstrap.rank(), i, round);
  }
  const Status status = bootstrap.allGather(all.data(), bytes);
  if (!status.ok()) return failures->add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < bytes; ++i) {
      if (all[r * bytes + i] == pattern(static_cast<int>(r), i, round)) continue;
      return failures->add(fmt::format("rank {}: byte {} of rank {}'s {} is wrong", bootstrap.rank(), i, r, bytes));
    }
  }
  for (size_t i = 0; i < 16; ++i) {
    if (all[ranks * bytes + i] != '\x5a') return failures->add("written beyond the end");
  }
}

}  // namespace fccl::test
