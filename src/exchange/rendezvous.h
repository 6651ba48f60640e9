// Large payloads that the receiver reads in place (transport/rendezvous.h): the RTS carries the number of regions; a
// message that describes them follows, unless the payload is contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/messages.h"
#include "transport/rendezvous.h"

namespace seqpar {

/// From this size on, a payload between ranks that can read each other starts with an RTS. An RTS without an address
/// announces messages.
inline constexpr size_t kRendezvousBytes = size_t{64} << 10;

inline bool byRendezvous(const Mailbox& mail, int peer, size_t bytes) {
  return byRendezvous(mail, peer, bytes, kRendezvousBytes);
}

/// Announces a large payload to its receivers, and moves the receivers that are to read it in place from `to` to
/// `readers`.
void sendRts(Mailbox& mail, OutgoingPayload& payload);

/// The payload's regions in the memory of rank `from`; empty if it arrives in messages. Only the addresses are valid
/// here.
RegionWalk<const std::byte> receiveRegions(Mailbox& mail, int from);

/// InternalError if a payload's length is not `expected`.
void requireLength(const Mailbox& mail, int from, const RegionWalk<const std::byte>& remote, size_t expected);

/// Reads the next bytes of a payload in the memory of rank `from`, as many as `into` can hold.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote,
                std::span<const std::span<std::byte>> into);
/// Reads the whole payload. InternalError if its length is not as expected.
void readRemote(Mailbox& mail, int from, RegionWalk<const std::byte>& remote, RegionWalk<std::byte>& into);

}  // namespace seqpar
