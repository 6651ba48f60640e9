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

/// A payload in the memory of another rank.
struct RemotePayload {
  RegionWalk<const std::byte> walk;
  bool mapped = false;  ///< the walk has addresses of this process; otherwise of the other, for Mailbox::read()
};

/// The payload's regions in the memory of rank `from`; empty if it arrives in messages.
RemotePayload receiveRegions(Mailbox& mail, int from);

/// InternalError if a payload's length is not `expected`.
void requireLength(const Mailbox& mail, int from, const RemotePayload& remote, size_t expected);

/// Reads the next bytes of a payload in the memory of rank `from`, as many as `into` can hold.
void readRemote(Mailbox& mail, int from, RemotePayload& remote, std::span<const std::span<std::byte>> into);
/// Reads the whole payload. InternalError if its length is not as expected. For streamed stores, finishParts() must
/// follow.
void readRemote(Mailbox& mail, int from, RemotePayload& remote, RegionWalk<std::byte>& into,
                Store store = Store::Cached);

}  // namespace seqpar
