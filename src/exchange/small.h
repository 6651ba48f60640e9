// Exchanges of payloads that are one message each.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"
#include "transport/mailbox.h"

namespace seqpar {

/// True if each payload for another rank is one region of fewer than `bytes` bytes. `bytes` is at most the smallest
/// message size and the least rendezvous, and one message for each rank must fit the window.
bool isSmall(const Mailbox& mail, const Route& route, std::size_t bytes);

/// The payloads for other ranks of a small route, in the messages of the general exchange, without its lists: for small
/// payloads they take longer than the messages.
void sendSmall(Mailbox& mail, std::span<const Transfer> sends, std::span<const std::byte* const> buffers);
void receiveSmall(Mailbox& mail, std::span<const Transfer> receives, std::span<std::byte* const> buffers);

}  // namespace seqpar
