#include "bootstrap/vote_wire.h"

#include <algorithm>
#include <cstring>

#include "bootstrap/little_endian.h"

namespace seqpar::wire {
namespace {

constexpr size_t kHeadBytes = 24;
constexpr size_t kMeetingBytes = sizeof(seqparUniqueId::internal);

size_t setBytes(size_t ranks) {
  return (ranks + 7) / 8;
}

void appendSet(Bytes& out, const RankSet& set) {
  const size_t at = out.size();
  out.resize(at + setBytes(set.size()));
  for (size_t rank = 0; rank < set.size(); ++rank) {
    if (set[rank]) out[at + rank / 8] |= std::byte{1} << (rank % 8);
  }
}

RankSet readSet(std::span<const std::byte> bytes, size_t ranks) {
  RankSet set(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    set[rank] = (bytes[rank / 8] & (std::byte{1} << (rank % 8))) != std::byte{0};
  }
  return set;
}

}  // namespace

Bytes encodeVote(const VoteMessage& message) {
  Bytes bytes(kHeadBytes);
  bytes[0] = static_cast<std::byte>(message.kind);
  bytes[1] = static_cast<std::byte>(message.arrived ? 1 : 0);
  bytes[2] = static_cast<std::byte>(message.choice ? 1 : 0);
  put(bytes, 4, static_cast<uint32_t>(message.departed.size()));
  put(bytes, 8, message.ballot);
  put(bytes, 16, message.accepted);
  appendSet(bytes, message.departed);
  if (!message.choice) return bytes;
  appendSet(bytes, message.choice->members);
  const auto meeting = std::as_bytes(std::span(message.choice->meeting.internal));
  bytes.insert(bytes.end(), meeting.begin(), meeting.end());
  return bytes;
}

std::optional<VoteMessage> decodeVote(std::span<const std::byte> bytes, size_t ranks) {
  if (bytes.size() < kHeadBytes) return std::nullopt;
  const auto kind = std::to_integer<uint8_t>(bytes[0]);
  const auto arrived = std::to_integer<uint8_t>(bytes[1]), chosen = std::to_integer<uint8_t>(bytes[2]);
  constexpr auto kFirst = static_cast<uint8_t>(VoteMessage::Kind::Join);
  constexpr auto kLast = static_cast<uint8_t>(VoteMessage::Kind::NoQuorum);
  if (kind < kFirst || kind > kLast || arrived > 1 || chosen > 1 || bytes[3] != std::byte{0}) return std::nullopt;
  const size_t set = setBytes(ranks);
  if (take<uint32_t>(bytes, 4) != ranks) return std::nullopt;
  if (bytes.size() != kHeadBytes + set + (chosen == 1 ? set + kMeetingBytes : 0)) return std::nullopt;
  VoteMessage message;
  message.kind = static_cast<VoteMessage::Kind>(kind);
  message.arrived = arrived == 1;
  message.ballot = take<uint64_t>(bytes, 8);
  message.accepted = take<uint64_t>(bytes, 16);
  message.departed = readSet(bytes.subspan(kHeadBytes), ranks);
  const auto isSame = [&] { return std::ranges::equal(encodeVote(message), bytes); };  // no bits beyond the ranks
  if (chosen == 0) return isSame() ? std::optional(message) : std::nullopt;
  Membership& choice = message.choice.emplace();
  choice.members = readSet(bytes.subspan(kHeadBytes + set), ranks);
  std::memcpy(choice.meeting.internal, bytes.data() + kHeadBytes + 2 * set, kMeetingBytes);
  return isSame() ? std::optional(message) : std::nullopt;
}

}  // namespace seqpar::wire
