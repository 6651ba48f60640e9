// Encoding of the messages of a vote.
#pragma once

#include <optional>
#include <span>

#include "bootstrap/vote.h"
#include "bootstrap/wire.h"

namespace seqpar::wire {

/// The body of a frame of kind Vote. Its sequence is the epoch.
Bytes encodeVote(const VoteMessage& message);
/// Nothing for other bytes than encodeVote() writes for a message about `ranks` ranks.
std::optional<VoteMessage> decodeVote(std::span<const std::byte> bytes, size_t ranks);

}  // namespace seqpar::wire
