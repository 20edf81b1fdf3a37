// Who may join a group: ids, secrets, strangers, ranks that are missing or come twice.
#include <array>
#include <atomic>
#include <numeric>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"
#include "transport/bootstrap.h"
#include "transport/endpoint.h"
#include "transport/interfaces.h"
#include "transport/rendezvous.h"
#include "transport/siphash.h"
#include "transport/socket.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

namespace {

IdContents contentsOf(const fcclUniqueId& id) { return unpackId(id).value(); }

std::vector<SocketAddress> addressesOf(const fcclUniqueId& id) { return candidates(contentsOf(id).root, 0); }

Fd knock(const fcclUniqueId& id) {
  return std::move(connectTo(addressesOf(id), Deadline(milliseconds(5'000)), false).value());
}

}  // namespace

TEST_CASE("SipHash-2-4 gives the published values") {
  const Key128 key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::array<unsigned char, 16> input{};
  std::iota(input.begin(), input.end(), static_cast<unsigned char>(0));
  const std::array<uint64_t, 9> published = {0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a,
                                             0x85676696d7fb7e2d, 0xcf2794e0277187b7, 0x18765564cd99a68d,
                                             0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462};
  for (size_t bytes = 0; bytes < published.size(); ++bytes)
    CHECK(sipHash24(key, input.data(), bytes) == published[bytes]);
  CHECK(sipHash24(key, input.data(), 15) == 0xa129ca6149be45e5);
}

TEST_CASE("an id that is not one is refused with a sentence") {
  const fcclUniqueId good = newId();
  CHECK(unpackId(good).ok());
  const auto refused = [&](const fcclUniqueId& id, const std::string& word) {
    const auto result = Bootstrap::connect(id, 0, 2, bootstrapOptions(milliseconds(1'000)));
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(contains(result.status().message(), word));
  };
  refused(fcclUniqueId{}, "not a unique id");
  fcclUniqueId id = good;
  id.internal[6] = 9;
  refused(id, "version 9");
  for (const size_t byte : {size_t{8}, size_t{20}, size_t{30}, size_t{60}}) {
    id = good;
    id.internal[byte] ^= 0x10;
    refused(id, "checksum");
  }
  // Nothing is lost by that: the id still serves its group.
  CHECK(connectRanks(2, good).text() == "");
}

TEST_CASE("strangers at rank 0's listener keep nobody up") {
  const fcclUniqueId id = newId();
  std::vector<Fd> strangers;
  for (int i = 0; i < 3; ++i) strangers.push_back(knock(id));  // silent
  strangers.push_back(knock(id));
  CHECK(sendAll(strangers.back(), "FHell", 5, Deadline(milliseconds(1'000))).ok());  // half a message
  strangers.push_back(knock(id));
  const std::string garbage(300, 'g');
  CHECK(sendAll(strangers.back(), garbage.data(), garbage.size(), Deadline(milliseconds(1'000))).ok());
  strangers.push_back(knock(id));
  strangers.back().reset();

  std::atomic<bool> turnedAway{false};
  const BootstrapGroup group = connectWith(4, "strangers", [&](int rank) {
    if (rank == 3) {
      // First with another secret, as a rank of another run would come; then rightly.
      Key128 secret = contentsOf(id).secret;
      secret[1] ^= 1;
      const auto wrong = RootConnection::open({addressesOf(id), false}, secret, Deadline(milliseconds(5'000)));
      turnedAway =
          wrong.status().code() == fcclInvalidUsage && contains(wrong.status().message(), "does not know the secret");
    }
    return Bootstrap::connect(id, rank, 4, bootstrapOptions());
  });
  CHECK(group.text() == "");
  CHECK(turnedAway);
}

TEST_CASE("a join without the secret is turned away") {
  const fcclUniqueId id = newId();
  std::atomic<bool> turnedAway{false};
  const BootstrapGroup group = connectWith(2, "forged join", [&](int rank) {
    if (rank == 1) {
      // The secret opens the door; the join is signed with another.
      auto connection =
          RootConnection::open({addressesOf(id), false}, contentsOf(id).secret, Deadline(milliseconds(5'000)));
      RankPlace place;
      place.rank = 1;
      place.ranks = 2;
      const Status status = connection.value().join(place, Listener(), Deadline(milliseconds(5'000))).status();
      turnedAway = status.code() == fcclInvalidUsage && contains(status.message(), "secret is wrong");
    }
    return Bootstrap::connect(id, rank, 2, bootstrapOptions());
  });
  CHECK(group.text() == "");
  CHECK(turnedAway);
}

TEST_CASE("every rank that has arrived learns which are missing") {
  const fcclUniqueId id = newId();
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup group = connectWith(12, "missing", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    if (rank == 3 || rank >= 7) return Status(fcclInProgress, "does not come");
    // The least patient of them decides.
    return Bootstrap::connect(id, rank, 12, bootstrapOptions(milliseconds(rank == 5 ? 600 : 20'000)));
  });
  CHECK(secondsSince(start) < 3 * slowness());
  for (const int rank : {0, 1, 2, 4, 5, 6}) {
    const Status& status = group.statuses[static_cast<size_t>(rank)];
    CAPTURE(rank, status.message());
    CHECK(status.code() == fcclSystemError);
    CHECK(contains(status.message(), "ranks 3, 7-11 of 12 are missing after"));
  }
}

TEST_CASE("where rank 0 does not come the others say so") {
  const fcclUniqueId id = newId();
  const BootstrapGroup group = connectWith(3, "no root", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
    if (rank == 0) return Status(fcclInProgress, "does not come");
    return Bootstrap::connect(id, rank, 3, bootstrapOptions(milliseconds(300)));
  });
  for (const size_t rank : {1u, 2u}) {
    CHECK(group.statuses[rank].code() == fcclSystemError);
    CHECK(contains(group.statuses[rank].message(), "rank 0 is missing"));
  }
  CHECK(Bootstrap::connect(id, 0, 1, bootstrapOptions()).ok());  // takes the listener out of the table
}

TEST_CASE("the same rank twice, and different numbers of ranks, fail on every rank at once") {
  const auto start = std::chrono::steady_clock::now();
  const fcclUniqueId first = newId();
  const BootstrapGroup twice = connectWith(4, "rank twice", [&](int rank) {
    return Bootstrap::connect(first, rank == 3 ? 2 : rank, 4, bootstrapOptions());
  });
  for (const Status& status : twice.statuses) {
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 2 came twice"));
  }
  const fcclUniqueId second = newId();
  const BootstrapGroup counts = connectWith(4, "counts differ", [&](int rank) {
    return Bootstrap::connect(second, rank, rank == 1 ? 8 : 4, bootstrapOptions());
  });
  for (const Status& status : counts.statuses) {
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "rank 1 was started with 8 ranks, rank 0 with 4"));
  }
  CHECK(secondsSince(start) < 4 * slowness());
}

TEST_CASE("an id that has been used is refused on all ranks") {
  const fcclUniqueId id = newId();
  const BootstrapGroup first = connectRanks(4, id);
  REQUIRE(first.text() == "");
  const auto start = std::chrono::steady_clock::now();
  const BootstrapGroup second = connectRanks(4, id);
  CHECK(secondsSince(start) < 2 * slowness());
  for (const Status& status : second.statuses) {
    CAPTURE(status.message());
    CHECK(status.code() == fcclInvalidUsage);
    CHECK(contains(status.message(), "id was already used"));
  }
}

TEST_CASE("an id that is used twice at the same time serves one group or none") {
  for (int round = 0; round < 20; ++round) {
    const fcclUniqueId id = newId();
    const auto start = std::chrono::steady_clock::now();
    const BootstrapGroup both = connectWith(
        8, "id twice", [&](int thread) { return Bootstrap::connect(id, thread % 4, 4, bootstrapOptions()); });
    CHECK(secondsSince(start) < 2 * slowness());
    int connected = 0;
    for (const Status& status : both.statuses) {
      connected += status.ok() ? 1 : 0;
      CAPTURE(both.text());
      if (!status.ok()) {
        CHECK(status.code() == fcclInvalidUsage);
        CHECK(contains(status.message(), "id was already used"));
      }
    }
    CAPTURE(both.text());
    CHECK((connected == 0 || connected == 4));
  }
}

TEST_CASE("rank 0 needs the id of its own process") {
  // As made elsewhere: an id whose listener this process does not have.
  const Result<Listener> elsewhere = listenOn(0);
  IdContents contents;
  contents.secret = randomKey().value();
  contents.root = makeEndpoint(elsewhere.value(), chooseInterface(listInterfaces().value(), "").value());
  const Status status = Bootstrap::connect(packId(contents), 0, 2, bootstrapOptions()).status();
  CHECK(status.code() == fcclInvalidUsage);
  CHECK(contains(status.message(), "made by another process"));
}
