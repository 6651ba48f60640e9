// Exchanges of payloads that are one message each.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Sends and receives the payloads for other ranks if each is one region of fewer than `bytes` bytes, in the messages
/// of the general exchange, without its lists: for small payloads they take longer than the messages. False if nothing
/// was done. `bytes` is at most the smallest message size and the least rendezvous, and one message for each rank must
/// fit the window.
bool exchangeSmall(Mailbox& mail, const Route& route, std::size_t bytes, std::span<const std::byte* const> sendBuffers,
                   std::span<std::byte* const> receiveBuffers);

}  // namespace seqpar
