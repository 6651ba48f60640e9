// Large payloads that the receiver reads where they lie (transport/rendezvous.h): the RTS is the number of regions, and
// a message that describes them follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/messages.h"
#include "transport/rendezvous.h"

namespace seqpar {

/// From here on a payload between ranks that can read each other begins with an RTS, which may say that there is
/// no address.
inline constexpr size_t kRendezvousBytes = size_t{64} << 10;

inline bool byRendezvous(const Mailbox& mail, int peer, size_t bytes) {
  return byRendezvous(mail, peer, bytes, kRendezvousBytes);
}

/// Tells the receivers of a large payload how it comes, and moves those that are to read it from `to` to `readers`.
void sendRts(Mailbox& mail, OutgoingPayload& payload);

/// The payload as it lies in the memory of the rank `from`; nothing in it if it comes in messages. Only the addresses
/// mean something.
RegionWalk<const std::byte> receiveRegions(Mailbox& mail, int from);

/// InternalError if an RTS is not as long as expected.
void requireLength(const Mailbox& mail, int from, const RegionWalk<const std::byte>& remote, size_t expected);

/// Reads the next bytes of a payload that lies with the rank `from`, as many as there is room for.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote,
                std::span<const std::span<std::byte>> into);
/// Reads all of it. InternalError if it is not as long as expected.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote, RegionWalk<std::byte>& into);

}  // namespace seqpar
