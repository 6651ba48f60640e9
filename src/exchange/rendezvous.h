// Large strings that the receiver reads where they lie, as src/ring does with large buffers: the sender offers an
// address, the receiver reads it and says so, and the sender answers that it was still waiting. Only that answer makes
// the bytes good, since a sender that had given up might have changed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/lanes.h"

namespace seqpar {

/// From here on a string between ranks that can read each other begins with an offer, or with the word that there is
/// none.
inline constexpr size_t kOffered = size_t{64} << 10;

inline bool mayOffer(const Mailbox& mail, int peer, size_t bytes) {
  return bytes >= kOffered && mail.readable(peer);
}

/// Tells the receivers of a large string how it comes, and moves those that are to read it from `to` to `readers`.
void offer(Mailbox& mail, OutgoingString& string);

/// The string as it lies in the memory of the rank `from`; nothing in it if it comes in messages. Only the addresses
/// mean something.
PieceWalk<const std::byte> receiveOffer(Mailbox& mail, int from);

/// InternalError if an offer is not as long as expected.
void requireLength(const Mailbox& mail, int from, const PieceWalk<const std::byte>& offer, size_t expected);

/// Reads the next bytes of a string that the rank `from` offers, as many as there is room for.
void readOffer(Mailbox& mail, int from, PieceWalk<const std::byte>& offer, std::span<const std::span<std::byte>> into);
/// Reads all of it. InternalError if it is not as long as expected.
void readOffer(Mailbox& mail, int from, PieceWalk<const std::byte>& offer, PieceWalk<std::byte>& into);
/// Says that it was read.
void thankForOffer(Mailbox& mail, int from);

/// Waits until the rank `to` has read; answers.
void finishOffer(Mailbox& mail, int to);
/// Waits for that answer.
void confirmOffer(Mailbox& mail, int from);

}  // namespace seqpar
