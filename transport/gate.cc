#include "transport/gate.h"

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace fccl {

Result<Fd> Gate::accept(const Fd* watched, const Deadline& deadline) {
  for (;;) {
    std::vector<pollfd> polls = {{listener_.fd.get(), POLLIN, 0},
                                 {watched != nullptr ? watched->get() : -1, POLLRDHUP, 0}};
    for (const Guest& guest : guests_) polls.push_back({guest.fd.get(), POLLIN | POLLRDHUP, 0});
    FCCL_TRY(waitFor(polls, deadline));
    for (size_t i = 0; i < guests_.size(); ++i) {
      if (polls[i + 2].revents == 0) continue;
      const Knock knock = hear(guests_[i]);
      if (knock == Knock::kExpected) return std::move(guests_[i].fd);
      if (knock == Knock::kOther) guests_[i].fd.reset();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.fd.valid(); });
    if (polls[1].revents != 0) return failure(fcclRemoteError, "the connection beside the listener was closed");
    if (polls[0].revents != 0) FCCL_TRY(acceptAll());
    if (deadline.passed()) return failure(fcclSystemError, "nobody came within {:.1f} s", deadline.secondsPassed());
  }
}

Status Gate::acceptAll() {
  for (;;) {
    int error = 0;
    Guest guest;
    guest.fd = acceptFrom(listener_, &error);
    if (guest.fd.valid()) {
      guest.said.resize(bytes_);
      guests_.push_back(std::move(guest));
      continue;
    }
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error != EMFILE && error != ENFILE) return {};
    if (guests_.empty()) {
      return failure(fcclSystemError, "cannot accept a connection at port {}: {}", listener_.port,
                     std::strerror(error));
    }
    guests_.erase(guests_.begin());
  }
}

Gate::Knock Gate::hear(Guest& guest) const {
  const ptrdiff_t got = receiveSome(guest.fd, guest.said.data() + guest.received, bytes_ - guest.received);
  if (got < 0) return Knock::kOther;
  guest.received += static_cast<size_t>(got);
  if (guest.received < bytes_) return Knock::kNotYet;
  return isExpected_(guest.said.data()) ? Knock::kExpected : Knock::kOther;
}

}  // namespace fccl
