#include "tests/support/thread_ranks.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "tests/support/catch.h"

namespace fccl::test {

double slowness() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 5;
#else
  return 1;
#endif
}

fcclConfig_t testConfig(int slotBytes) {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  config.timeoutMs = static_cast<int>(20'000 * slowness());
  config.initTimeoutMs = config.timeoutMs;
  if (slotBytes != 0) config.slotBytes = slotBytes;
  return config;
}

void Failures::add(std::string text) {
  const std::lock_guard lock(mutex_);
  if (texts_.size() < 20) texts_.push_back(std::move(text));
  ++total_;
}

bool Failures::none() const {
  const std::lock_guard lock(mutex_);
  return total_ == 0;
}

void Failures::clear() {
  const std::lock_guard lock(mutex_);
  texts_.clear();
  total_ = 0;
}

std::string Failures::text() const {
  const std::lock_guard lock(mutex_);
  std::string all = fmt::format("{} failures", total_);
  for (const std::string& text : texts_) all += "\n  " + text;
  return all;
}

void Rank::expect(bool condition, std::string_view what) const {
  if (!condition) failures->add(fmt::format("rank {} of {}: {}", rank, ranks, what));
}

bool Rank::ok(fcclResult_t result, std::string_view what) const {
  if (result == fcclSuccess) return true;
  expect(false, fmt::format("{}: {} ({}), not fcclSuccess: {}", what, fcclGetErrorString(result),
                            static_cast<int>(result), fcclGetLastError(comm)));
  return false;
}

void Rank::fails(fcclResult_t result, fcclResult_t wanted, std::string_view words, std::string_view what) const {
  const std::string sentence = fcclGetLastError(comm);
  if (result != wanted) {
    expect(false, fmt::format("{}: result {} in place of {}; last error: {}", what, static_cast<int>(result),
                              static_cast<int>(wanted), sentence));
    return;
  }
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find('|'));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    expect(sentence.find(word) != std::string::npos,
           fmt::format("{}: the error does not mention '{}': {}", what, word, sentence));
  }
}

void runThreads(int ranks, std::string_view what, Seconds limit, const std::function<void(int rank)>& body) {
  std::mutex mutex;
  std::condition_variable done;
  std::vector<bool> inside(static_cast<size_t>(ranks), true);
  int running = ranks;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank);
      const std::lock_guard lock(mutex);
      inside[static_cast<size_t>(rank)] = false;
      if (--running == 0) done.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  if (!done.wait_for(lock, limit * slowness(), [&] { return running == 0; })) {
    std::string stuck;
    for (int rank = 0; rank < ranks; ++rank) {
      if (inside[static_cast<size_t>(rank)]) stuck += fmt::format(" {}", rank);
    }
    fmt::print(stderr, "\nTIME LIMIT: test '{}', {}: after {:.0f} s these of {} ranks are still inside:{}\n",
               Catch::getResultCapture().getCurrentTestName(), what, limit.count() * slowness(), ranks, stuck);
    std::fflush(stderr);
    std::abort();
  }
}

void initRanks(int ranks, const fcclConfig_t& config, std::vector<fcclComm_t>* comms,
               std::vector<fcclResult_t>* results, std::vector<std::string>* errors) {
  const auto count = static_cast<size_t>(ranks);
  comms->assign(count, nullptr);
  results->assign(count, fcclInProgress);
  if (errors != nullptr) errors->assign(count, "");
  fcclUniqueId id;
  if (fcclGetUniqueId(&id) != fcclSuccess) {
    FAIL("fcclGetUniqueId: " << fcclGetLastError(nullptr));
  }
  runThreads(ranks, "fcclCommInit", Seconds(40), [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    (*results)[at] = fcclCommInit(&(*comms)[at], ranks, id, rank, &config);
    if ((*results)[at] != fcclSuccess && errors != nullptr) (*errors)[at] = fcclGetLastError(nullptr);
  });
}

RankGroup::RankGroup(int ranks, const fcclConfig_t& config) {
  std::vector<fcclResult_t> results;
  std::vector<std::string> errors;
  initRanks(ranks, config, &comms_, &results, &errors);
  for (size_t rank = 0; rank < comms_.size(); ++rank) {
    if (results[rank] != fcclSuccess || comms_[rank] == nullptr) {
      FAIL("fcclCommInit of rank " << rank << " of " << ranks << ": " << results[rank] << ": " << errors[rank]);
    }
  }
}

RankGroup::~RankGroup() {
  Failures failures;
  runThreads(ranks(), "fcclCommDestroy", Seconds(30), [&](int rank) {
    if (comm(rank) == nullptr) return;
    const fcclResult_t result = fcclCommDestroy(comm(rank));
    if (result != fcclSuccess)
      failures.add(fmt::format("fcclCommDestroy of rank {}: {}", rank, static_cast<int>(result)));
  });
  // A destructor must not throw, so this one reports and goes on.
  if (!failures.none()) FAIL_CHECK(failures.text());
}

void RankGroup::run(std::string_view what, const std::function<void(Rank&)>& body, Seconds limit) {
  Failures failures;
  runThreads(ranks(), what, limit, [&](int rank) {
    Rank self{rank, ranks(), comm(rank), &failures};
    try {
      body(self);
    } catch (const std::exception& error) {
      self.expect(false, fmt::format("exception: {}", error.what()));
    }
  });
  if (!failures.none()) FAIL(what << ": " << failures.text());
}

}  // namespace fccl::test
