// Neighbour exchange: send to one rank while receiving from another.
#pragma once

#include <span>

#include "transport/mailbox.h"

namespace seqpar {

/// As seqparSendRecv(); peers are ranks other than this one, or SEQPAR_NO_PEER.
void sendReceive(Mailbox& mail, std::span<const std::byte> send, int sendPeer, std::span<std::byte> receive,
                 int receivePeer);

}  // namespace seqpar
