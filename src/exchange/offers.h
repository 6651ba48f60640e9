// Large strings that the receiver reads where they lie, as src/ring does with large buffers: the sender offers an
// address, the receiver reads it and says so, and the sender answers that it was still waiting. Only that answer makes
// the bytes good, since a sender that had given up might have changed them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exchange/lanes.h"

namespace seqpar {

/// From here on a string between ranks that can read each other begins with an offer, or with the word that there is
/// none.
inline constexpr size_t kOffered = size_t{1} << 20;

inline bool mayOffer(const Mailbox& mail, int peer, size_t bytes) {
  return bytes >= kOffered && mail.readable(peer);
}

/// Says where the string lies; address 0: it will be sent in messages.
void sendOffer(Mailbox& mail, int to, uint64_t address);
uint64_t receiveOffer(Mailbox& mail, int from);

/// Reads a whole string at `address` of the rank `from`, and says so.
void takeOffer(Mailbox& mail, int from, uint64_t address, PieceWalk<std::byte>& into);

/// Waits until the rank `to` has read; answers.
void finishOffer(Mailbox& mail, int to);
/// Waits for that answer.
void confirmOffer(Mailbox& mail, int from);

}  // namespace seqpar
