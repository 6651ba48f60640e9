#include "bootstrap/handshake.h"

#include <algorithm>

namespace seqpar {
namespace {

constexpr size_t kTagBytes = 16;
static_assert(kRecordHeadBytes == 4 + kTagBytes);

std::array<std::byte, 12> numbered(uint64_t number, size_t length) {
  std::array<std::byte, 12> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
  for (size_t i = 0; i < 4; ++i) bytes[8 + i] = static_cast<std::byte>(length >> (8 * i) & 0xff);
  return bytes;
}

Digest tagOf(const Digest& key, uint64_t number, std::span<const std::byte> payload) {
  const auto head = numbered(number, payload.size());
  return HmacSha256(key).add(std::span<const std::byte>(head)).add(payload).finish();
}

}  // namespace

size_t recordBytes(std::span<const std::byte, kRecordHeadBytes> head) {
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= std::to_integer<size_t>(head[i]) << (8 * i);
  return kRecordHeadBytes + std::min(length, kRecordPayload + 1);  // one more than allowed is refused
}

Session makeSession(const Token& secret, std::span<const std::byte> hello, std::span<const std::byte> challenge) {
  const Digest transcript = Sha256().add("seqpar").add(hello).add(challenge).finish();
  const auto derive = [&](std::string_view label) {
    return HmacSha256(secret).add(label).add(std::span<const std::byte>(transcript)).finish();
  };
  return {derive("rank proof"), derive("rank records"), derive("root records")};
}

void Sealer::seal(std::span<const std::byte> bytes, wire::Bytes& out) {
  while (!bytes.empty()) {
    const auto payload = bytes.first(std::min(bytes.size(), kRecordPayload));
    const Digest tag = tagOf(key_, next_++, payload);
    const auto length = numbered(0, payload.size());
    out.insert(out.end(), length.begin() + 8, length.end());
    out.insert(out.end(), tag.begin(), tag.begin() + kTagBytes);
    out.insert(out.end(), payload.begin(), payload.end());
    bytes = bytes.subspan(payload.size());
  }
}

bool Opener::open(std::span<const std::byte> bytes, wire::Bytes& out) {
  while (!broken_) {
    size_t wanted = kRecordHeadBytes;
    if (pending_.size() >= kRecordHeadBytes) {
      wanted = recordBytes(std::span<const std::byte>(pending_).first<kRecordHeadBytes>());
      if (wanted == kRecordHeadBytes || wanted > kRecordHeadBytes + kRecordPayload) break;
      if (pending_.size() == wanted) {
        const auto record = std::span<const std::byte>(pending_);
        const auto payload = record.subspan(kRecordHeadBytes);
        const Digest tag = tagOf(key_, next_++, payload);
        if (!equalSecrets(record.subspan(4, kTagBytes), std::span<const std::byte>(tag).first(kTagBytes))) break;
        out.insert(out.end(), payload.begin(), payload.end());
        pending_.clear();
        continue;
      }
    }
    if (bytes.empty()) return true;
    const size_t part = std::min(bytes.size(), wanted - pending_.size());
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part));
    bytes = bytes.subspan(part);
  }
  broken_ = true;
  return false;
}

}  // namespace seqpar
