// What rank 0 and the others say to each other at the rendezvous, and the proofs that they know the id's secret.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/rendezvous.h"
#include "transport/siphash.h"

namespace fccl {

constexpr uint64_t kHelloMagic = 0x31306f6c6c654846;  // "FHello01"

struct Hello {
  uint64_t magic = kHelloMagic;
  Key128 nonce{};
};

struct Challenge {
  Key128 nonce{};
  uint64_t proof = 0;
};

struct JoinBody {
  int32_t rank = 0;
  int32_t ranks = 0;
  int64_t millisecondsLeft = 0;
  RingEndpoint ring;
};

struct Join {
  JoinBody body;
  uint64_t proof = 0;
};

constexpr size_t kAnswerText = 1000;

struct Answer {
  int32_t code = 0;  // fcclResult_t, or kCallBack
  uint32_t textBytes = 0;
  RingEndpoint successor;
  std::array<char, kAnswerText> text{};
};
constexpr int32_t kCallBack = -1;  // "close this connection: I shall call at your listener when all are there"

// What rank 0 says at the listener of a rank that waits for its call. The rank returns kTaken.
struct Call {
  Answer answer;
  uint64_t proof = 0;
};
constexpr uint64_t kTaken = 0x31306e656b615446;  // "FTaken01"

static_assert(std::has_unique_object_representations_v<JoinBody>, "padding would be hashed and sent");
static_assert(std::has_unique_object_representations_v<Answer>, "padding would be hashed and sent");

inline uint64_t rootProof(const Key128& secret, const Key128& clientNonce, const Key128& rootNonce) {
  const std::array<uint64_t, 5> seen = {1, clientNonce[0], clientNonce[1], rootNonce[0], rootNonce[1]};
  return sipHash24(secret, seen.data(), sizeof seen);
}

inline uint64_t joinProof(const Key128& secret, const Key128& clientNonce, const Key128& rootNonce,
                          const JoinBody& body) {
  struct {
    std::array<uint64_t, 5> nonces;
    JoinBody body;
  } const seen = {{2, clientNonce[0], clientNonce[1], rootNonce[0], rootNonce[1]}, body};
  return sipHash24(secret, &seen, sizeof seen);
}

inline uint64_t callProof(const Key128& secret, const Key128& ticket, const Answer& answer) {
  struct {
    std::array<uint64_t, 3> key;
    Answer answer;
  } const seen = {{5, ticket[0], ticket[1]}, answer};
  return sipHash24(secret, &seen, sizeof seen);
}

inline Answer refusal(const Status& status) {
  Answer answer;
  answer.code = status.code();
  answer.textBytes = static_cast<uint32_t>(std::min(status.message().size(), answer.text.size()));
  std::memcpy(answer.text.data(), status.message().data(), answer.textBytes);
  return answer;
}

// How long ranks wait beyond their deadline for rank 0, which speaks at the deadline, to name who is missing.
constexpr std::chrono::milliseconds kGrace(1'000);

}  // namespace fccl
