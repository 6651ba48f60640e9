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
inline constexpr size_t kOffered = size_t{64} << 10;

inline bool mayOffer(const Mailbox& mail, int peer, size_t bytes) {
  return bytes >= kOffered && mail.readable(peer);
}

/// True if a string is better read by its receivers than sent in messages.
bool worthOffering(const OutgoingString& string);

/// Says where the string lies; `offered` false: it will be sent in messages.
void sendOffer(Mailbox& mail, int to, const OutgoingString& string, bool offered);

/// The string as it lies in the memory of the rank `from`; nothing in it if it comes in messages. Only the addresses
/// mean something.
PieceWalk<const std::byte> receiveOffer(Mailbox& mail, int from);

/// Reads a whole string that the rank `from` offers, and says so.
void takeOffer(Mailbox& mail, int from, PieceWalk<const std::byte>& offer, PieceWalk<std::byte>& into);

/// Waits until the rank `to` has read; answers.
void finishOffer(Mailbox& mail, int to);
/// Waits for that answer.
void confirmOffer(Mailbox& mail, int from);

}  // namespace seqpar
