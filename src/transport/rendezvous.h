// Large buffers that the receiver reads in place, if the system allows it (Mailbox::readable): the messages of a
// rendezvous, as in UCX and MPI. The collective determines their use and the minimum size.
//
//   sender                                   receiver
//   RTS: address, or 0: as messages          receives it, reads with Mailbox::read()
//                                            FIN: has read
//
// A sender that gives up may change the bytes; Mailbox::read() then fails. A rank sends all its RTS before it waits for
// one, and its FINs before it waits for any, so no ring of ranks can deadlock.
#pragma once

#include <cstdint>
#include <span>

#include "transport/mailbox.h"

namespace seqpar {

/// Whether a transfer of `bytes` to or from a peer starts with an RTS, in a collective that reads payloads in place
/// from `least` bytes on, or from Mailbox::kLeastMapped on if they are mapped. Both ends agree.
inline bool byRendezvous(const Mailbox& mail, int peer, size_t bytes, size_t least) {
  return (bytes >= least && mail.readable(peer)) || (bytes >= Mailbox::kLeastMapped && mail.mapped(peer));
}

/// Sender: true if the receiver should copy the payload from this rank's buffer, which it maps.
inline bool sendsMapped(const Mailbox& mail, int to, std::span<const std::byte> payload) {
  return payload.size() >= Mailbox::kLeastMapped && mail.mapped(to) && mail.shared(payload.data(), payload.size());
}

/// `where` is 0 if the payload is sent as messages, otherwise the address in a form that the collective defines.
void sendRts(Mailbox& mail, int to, uint64_t where);
uint64_t receiveRts(Mailbox& mail, int from);

/// Receiver: reports that it has read.
void sendFin(Mailbox& mail, int to);
/// Sender: waits for FIN.
void awaitFin(Mailbox& mail, int from);

}  // namespace seqpar
