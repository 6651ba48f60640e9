// Large buffers that the receiver reads where they lie, where the system lets it (Mailbox::readable): the messages of a
// rendezvous, as UCX and MPI have them. What they are sent for, and from which size on, is the collective's.
//
//   sender                                   receiver
//   RTS: where it lies, or 0: in messages    takes it, reads with Mailbox::read()
//                                            FIN: has read
//   ACK: was still waiting
//
// Only ACK makes the bytes good: a sender that had given up might have changed them. A rank sends all its RTS before it
// waits for one, its FINs before it waits for any, and those before it waits for ACKs; so no ring of ranks can lock.
#pragma once

#include <cstdint>

#include "transport/mailbox.h"

namespace seqpar {

/// Whether `bytes` to or from a peer begin with an RTS, in a collective that reads payloads in place from `least` bytes
/// on. The same at both ends.
inline bool byRendezvous(const Mailbox& mail, int peer, size_t bytes, size_t least) {
  return bytes >= least && mail.readable(peer);
}

/// `where` is 0 if the payload comes in messages, else what the collective needs to find it.
void sendRts(Mailbox& mail, int to, uint64_t where);
uint64_t receiveRts(Mailbox& mail, int from);

/// The receiver: has read.
void sendFin(Mailbox& mail, int to);
/// The sender: waits for FIN and answers with ACK.
void awaitFin(Mailbox& mail, int from);
/// The receiver: waits for ACK.
void awaitAck(Mailbox& mail, int from);

}  // namespace seqpar
