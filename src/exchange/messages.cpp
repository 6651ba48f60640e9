#include "exchange/messages.h"

#include <algorithm>
#include <map>

namespace seqpar {
namespace {

constexpr size_t kCacheLine = 64;
/// Window space of the smallest message in the mailbox.
constexpr size_t kLeastInWindow = 512;
/// As in a neighbor exchange: smaller messages do not pay off; larger ones delay the copy out, which follows the copy
/// in.
constexpr size_t kLeastMessage = size_t{8} << 10;
constexpr size_t kMostMessage = size_t{64} << 10;
/// Number of messages for a payload of medium size.
constexpr size_t kMessages = 4;

bool equal(const StridedRegion& a, const StridedRegion& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.run == b.run && a.count == b.count && a.stride == b.stride;
}

bool equal(std::span<const Transfer* const> a, std::span<const Transfer* const> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Transfer* x, const Transfer* y) { return equal(x->region, y->region); });
}

}  // namespace

void prefetchRun(const RegionWalk<const std::byte>& walk) {
  constexpr size_t kAhead = 2048;
  const std::byte* const begin = walk.ahead();
  const size_t bytes = std::min(walk.contiguous(), kAhead);
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(begin + at);
}

Cutting::Cutting(const Mailbox& mail) : ranks_(static_cast<size_t>(mail.size())) {
  const size_t round = mail.window() / (kLead + 1);
  const size_t peers = std::max<size_t>(1, ranks_ - 1);
  batchSize_ = std::clamp<size_t>(round / kLeastInWindow, 1, peers);
  batches_ = (peers + batchSize_ - 1) / batchSize_;
  most_ = std::min({round / batchSize_, mail.maxMessage(), kMostMessage}) / kCacheLine * kCacheLine;
}

size_t Cutting::batchOf(int from, int to) const {
  const auto ranks = static_cast<int>(ranks_);
  const int distance = (to - from + ranks) % ranks;
  return static_cast<size_t>(distance - 1) / batchSize_;
}

size_t Cutting::message(size_t payloadBytes) const {
  const size_t aimed = (payloadBytes / kMessages + kCacheLine - 1) / kCacheLine * kCacheLine;
  return std::min(std::max(aimed, kLeastMessage), most_);
}

size_t Cutting::messages(size_t payloadBytes) const {
  const size_t each = message(payloadBytes);
  return (payloadBytes + each - 1) / each;
}

size_t Cutting::messageAt(size_t payloadBytes, size_t index) const {
  const size_t each = message(payloadBytes);
  return std::min(each, payloadBytes - index * each);
}

void pack(Target to, RegionWalk<const std::byte>& from, size_t bytes) {
  while (bytes > 0) {
    const auto part = from.next(bytes);
    prefetchRun(from);
    copyPartTo(to, part.data(), part.size());
    to = to.after(part.size());
    bytes -= part.size();
  }
  finishParts();
}

void unpack(RegionWalk<std::byte>& to, const std::byte* from, size_t bytes, Store store) {
  while (bytes > 0) {
    const auto part = to.next(bytes);
    copyFrom(part.data(), from, part.size(), storeOfPart(store, part.size()));
    from += part.size();
    bytes -= part.size();
  }
}

void OutgoingPayload::restart(std::span<const std::byte* const> buffers) {
  walk.restart(buffers);
  to = receivers;
  readers.clear();
}

void OutgoingPayload::send(Mailbox& mail, const Cutting& cutting, size_t round) {
  if (to.empty() || round >= cutting.messages(bytes)) return;
  const size_t size = cutting.messageAt(bytes, round);
  pack(mail.acquire(to, size), walk, size);
  mail.commit();
}

std::vector<OutgoingPayload> outgoingPayloads(const Mailbox& mail, const Cutting& cutting,
                                              std::span<const Transfer> sends) {
  const int ranks = mail.size();
  std::map<int, std::vector<const Transfer*>> byDistance;
  for (const Transfer& transfer : sends) {
    if (transfer.peer == mail.rank() || transfer.region.bytes() == 0) continue;
    byDistance[(transfer.peer - mail.rank() + ranks) % ranks].push_back(&transfer);
  }

  std::vector<OutgoingPayload> payloads;
  std::vector<const std::vector<const Transfer*>*> sources;
  for (const auto& [distance, transfers] : byDistance) {
    const int peer = transfers.front()->peer;
    const size_t batch = cutting.batchOf(mail.rank(), peer);
    size_t same = 0;
    while (same < payloads.size() && !(payloads[same].batch == batch && equal(*sources[same], transfers))) ++same;
    if (same < payloads.size()) {
      payloads[same].receivers.push_back(peer);
      continue;
    }
    OutgoingPayload& payload = payloads.emplace_back();
    payload.receivers = {peer};
    payload.batch = batch;
    for (const Transfer* transfer : transfers) payload.walk.add(transfer->region, nullptr);
    payload.bytes = payload.walk.left();
    sources.push_back(&transfers);
  }
  return payloads;
}

}  // namespace seqpar
