// Large payloads that the receiver reads where they lie, as src/ring does with large buffers: the sender sends its
// address (RTS), the receiver reads and says so (FIN), and the sender answers that it was still waiting (ACK). Only ACK
// makes the bytes good, since a sender that had given up might have changed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/messages.h"

namespace seqpar {

/// From here on a payload between ranks that can read each other begins with an RTS, which may say that there is
/// no address.
inline constexpr size_t kRendezvousBytes = size_t{64} << 10;

inline bool byRendezvous(const Mailbox& mail, int peer, size_t bytes) {
  return bytes >= kRendezvousBytes && mail.readable(peer);
}

/// Tells the receivers of a large payload how it comes, and moves those that are to read it from `to` to `readers`.
void sendRts(Mailbox& mail, OutgoingPayload& payload);

/// The payload as it lies in the memory of the rank `from`; nothing in it if it comes in messages. Only the addresses
/// mean something.
RegionWalk<const std::byte> receiveRts(Mailbox& mail, int from);

/// InternalError if an RTS is not as long as expected.
void requireLength(const Mailbox& mail, int from, const RegionWalk<const std::byte>& remote, size_t expected);

/// Reads the next bytes of a payload that lies with the rank `from`, as many as there is room for.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote,
                std::span<const std::span<std::byte>> into);
/// Reads all of it. InternalError if it is not as long as expected.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote, RegionWalk<std::byte>& into);
/// Says that it was read.
void sendFin(Mailbox& mail, int from);

/// Waits until the rank `to` has read; answers.
void awaitFin(Mailbox& mail, int to);
/// Waits for that answer.
void awaitAck(Mailbox& mail, int from);

}  // namespace seqpar
