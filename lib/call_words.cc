#include "lib/call_words.h"

#include <bit>
#include <string_view>

#include "tuner/patterns.h"

namespace fccl {
namespace {

// CallSignature::detail, from the low bits up.
struct Detail {
  unsigned op, dtype, pattern, strategy, scaleLayout;
  bool reducedOut, weightIsFp32, weightBias, inputPushed, residualSharded;
  float eps;

  uint64_t pack() const {
    return uint64_t{op} | uint64_t{dtype} << 4 | uint64_t{pattern} << 8 | uint64_t{strategy} << 12 |
           uint64_t{scaleLayout} << 16 | uint64_t{reducedOut} << 20 | uint64_t{weightIsFp32} << 21 |
           uint64_t{weightBias} << 22 | uint64_t{inputPushed} << 23 | uint64_t{residualSharded} << 24 |
           uint64_t{std::bit_cast<uint32_t>(eps)} << 32;
  }
  static Detail unpack(uint64_t detail) {
    const auto bits = [detail](int at, unsigned mask) { return static_cast<unsigned>(detail >> at) & mask; };
    return {bits(0, 15),
            bits(4, 15),
            bits(8, 15),
            bits(12, 15),
            bits(16, 15),
            bits(20, 1) != 0,
            bits(21, 1) != 0,
            bits(22, 1) != 0,
            bits(23, 1) != 0,
            bits(24, 1) != 0,
            std::bit_cast<float>(static_cast<uint32_t>(detail >> 32))};
  }
};

std::string describePlace(const char* what, uint64_t place) {
  if (place == 0) return {};
  return fmt::format(", {} in window {} at byte {}", what, (place >> 48) - 1, place & ((uint64_t{1} << 48) - 1));
}

// 1st, 2nd, 3rd, 4th, 11th, ...
std::string ordinal(uint32_t n) {
  const bool teen = n % 100 >= 11 && n % 100 <= 13;
  const std::string_view ending = teen ? "th" : n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
  return fmt::format("{}{}", n, ending);
}

// What made a collective fail in the first place, and which peer (-1: none) has told this rank of it.
struct Cause {
  host::Failure failure;
  int toldBy = -1;
};

Cause causeOf(const host::World& world, const host::Failure& failure) {
  // An abort of this rank comes first: a peer that noticed it may have been quicker to say so than this rank's wait.
  // Relaxed: nothing but the reason is read.
  const uint32_t own = world.control(world.rank).ended.value.load(std::memory_order_relaxed);
  if (own == host::kAborted) return {{host::FailureKind::kAbortedHere, world.rank}, -1};
  if (failure.kind != host::FailureKind::kPeerAborted) return {failure, -1};
  // Acquire: pairs with the release of the peer; the kernel has already seen that it is set.
  const uint32_t ended = world.control(failure.rank).ended.value.load(std::memory_order_acquire);
  if ((ended & 0xff) == host::kLeft) return {{host::FailureKind::kPeerLeft, failure.rank}, -1};
  if ((ended & 0xff) != host::kGaveUp) return {failure, -1};
  return {{static_cast<host::FailureKind>(ended >> 8 & 0xff), static_cast<int>(ended >> 16)}, failure.rank};
}

}  // namespace

host::CallSignature signatureOf(const CheckedCall& call, uint64_t inputPlace, uint64_t outputPlace) {
  const RowArgs& rows = call.call.rows;
  Detail detail{};
  detail.op = static_cast<unsigned>(call.call.op);
  detail.dtype = static_cast<unsigned>(call.call.dtype);
  detail.pattern = static_cast<unsigned>(call.pattern);
  detail.strategy = static_cast<unsigned>(call.strategy);
  detail.reducedOut = rows.reducedOut != nullptr && !call.empty();
  if (kPatterns[detail.pattern].norm) {
    detail.weightIsFp32 = rows.weightIsFp32;
    detail.weightBias = rows.weightBias != 0;
    detail.eps = rows.eps;
  }
  if (rows.quant == QuantKind::kNvfp4) detail.scaleLayout = rows.scaleLayout;
  detail.inputPushed = rows.inputPushed;
  detail.residualSharded = rows.residualSharded;

  host::CallSignature signature;
  signature.kind = static_cast<uint64_t>(call.entry);
  signature.detail = detail.pack();
  signature.rows = call.tokens;
  signature.cols = call.hidden;
  signature.inputPlace = inputPlace;
  signature.outputPlace = outputPlace;
  return signature;
}

bool saysInputPushed(const host::CallSignature& signature) { return Detail::unpack(signature.detail).inputPushed; }

std::string describe(const host::CallSignature& signature) {
  const Detail detail = Detail::unpack(signature.detail);
  const char* dtype = host::dtypeName(static_cast<fcclDataType_t>(detail.dtype));
  std::string text;
  if (signature.kind == static_cast<uint64_t>(EntryPoint::kAllReduce)) {
    text = fmt::format("AllReduce({}, {}, count {}", opName(static_cast<int>(detail.op)), dtype, signature.cols);
  } else {
    const PatternTraits& traits = kPatterns[detail.pattern];
    text = fmt::format("AllReduceFused({}, {}, {} tokens x {}, strategy {}", traits.name, dtype, signature.rows,
                       signature.cols, strategyName(static_cast<int>(detail.strategy)));
    if (traits.norm) {
      text += fmt::format(", eps {}, weightBias {}{}{}", detail.eps, detail.weightBias ? 1 : 0,
                          detail.weightIsFp32 ? ", fp32 weight" : "", detail.reducedOut ? ", with reducedOut" : "");
    }
    if (traits.quant == QuantKind::kNvfp4) text += fmt::format(", scaleLayout {}", detail.scaleLayout);
    if (detail.inputPushed) text += ", inputPushed";
    if (detail.residualSharded) text += ", residualSharded";
  }
  return text + describePlace("input", signature.inputPlace) + describePlace("output", signature.outputPlace) + ")";
}

uint32_t endedBecauseOf(const host::World& world, const host::Failure& failure) {
  const host::Failure cause = causeOf(world, failure).failure;
  return host::kGaveUp | static_cast<uint32_t>(cause.kind) << 8 | static_cast<uint32_t>(cause.rank) << 16;
}

Status describeFailure(const host::World& world, const host::Failure& failed, const std::string& call,
                       uint32_t firstCall) {
  const Cause cause = causeOf(world, failed);
  const int peer = cause.failure.rank;
  // Relaxed: for the text only.
  const auto begun = [&](int r) { return world.control(r).calls.value.load(std::memory_order_relaxed) - firstCall; };
  const std::string current =
      call.empty() ? fmt::format("this rank has enqueued {}, replays of graphs not counted", begun(world.rank))
                   : fmt::format("this rank is in its {}: {}", ordinal(begun(world.rank)), call);
  switch (cause.failure.kind) {
    case host::FailureKind::kTimeout: {
      const std::string limit = cause.toldBy < 0 ? fmt::format("{} ms", world.wait.timeout.count())
                                                 : fmt::format("the time limit of rank {}", cause.toldBy);
      if (peer == world.rank) {
        return failure(fcclRemoteError, "this rank did not arrive within {}, which has given up; {}.", limit, current);
      }
      const uint32_t count = begun(peer);
      return failure(fcclRemoteError,
                     "rank {} did not arrive within {}: it has begun {} collective{}, {}. The limit is timeoutMs "
                     "(FCCL_TIMEOUT_MS).",
                     peer, limit, count, count == 1 ? "" : "s", current);
    }
    case host::FailureKind::kPeerDied:
      return failure(fcclRemoteError,
                     "rank {} is gone: its process has ended, or it has given up its communicator; {}.", peer, current);
    case host::FailureKind::kPeerAborted:
      return failure(fcclRemoteError, "rank {} has aborted the communicator; {}.", peer, current);
    case host::FailureKind::kPeerLeft:
      return failure(fcclRemoteError, "rank {} has destroyed its communicator; {}.", peer, current);
    case host::FailureKind::kCutShort:
      if (peer == world.rank) {
        return failure(
            fcclUnhandledCudaError,
            "a launch failed in the middle of a call that runs in several, so this rank has done only a part "
            "of it; {}.",
            current);
      }
      return failure(fcclRemoteError, "rank {} has done only a part of a call, since a launch of it failed; {}.", peer,
                     current);
    case host::FailureKind::kAbortedHere:
      return failure(fcclInvalidUsage, "the communicator was aborted here while a collective was under way; {}.",
                     current);
    case host::FailureKind::kNone: break;
  }
  return failure(fcclInternalError, "a collective has ended without a result and without a reason; {}.", current);
}

}  // namespace fccl
