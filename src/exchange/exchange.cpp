#include "exchange/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "exchange/messages.h"
#include "exchange/rendezvous.h"
#include "exchange/small.h"

namespace seqpar {
namespace {

/// From this size on, the bytes that a rank receives in one exchange are stored past its caches: they do not fit, and
/// ordinary stores would first read them from memory.
constexpr size_t kStreamed = size_t{8} << 20;

Store storeOf(std::span<const Transfer> receives) {
  size_t bytes = 0;
  for (const Transfer& transfer : receives) bytes += transfer.region.bytes();
  return bytes < kStreamed ? Store::Cached : Store::Streamed;
}

/// A payload that this rank receives.
struct IncomingPayload {
  int from = 0;
  size_t batch = 0;
  size_t bytes = 0;
  RegionWalk<std::byte> walk;
  RegionWalk<const std::byte> remote;  ///< where to read it; empty: it arrives in messages

  void receive(Mailbox& mail, const Cutting& cutting, size_t round, Store store) {
    if (remote.left() > 0 || round >= cutting.messages(bytes)) return;
    const size_t size = cutting.messageAt(bytes, round);
    unpack(walk, mail.receive(from, size), size, store);
    mail.release(from);
  }
};

/// In the other ranks' sending order: ranks before this one first.
std::vector<IncomingPayload> incomingPayloads(const Mailbox& mail, const Cutting& cutting,
                                              std::span<const Transfer> receives, std::span<std::byte* const> buffers) {
  std::map<int, IncomingPayload> byDistance;
  for (const Transfer& transfer : receives) {
    if (transfer.peer == mail.rank() || transfer.region.bytes() == 0) continue;
    IncomingPayload& payload = byDistance[(mail.rank() - transfer.peer + mail.size()) % mail.size()];
    payload.from = transfer.peer;
    payload.walk.add(transfer.region, buffers[static_cast<size_t>(transfer.region.buffer)]);
  }
  std::vector<IncomingPayload> payloads;
  for (auto& [distance, payload] : byDistance) {
    payload.bytes = payload.walk.left();
    payload.batch = cutting.batchOf(payload.from, mail.rank());
    payloads.push_back(std::move(payload));
  }
  return payloads;
}

void copyOwn(const Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
             std::span<std::byte* const> receiveBuffers) {
  auto from = payloadOf(std::span(route.sends), mail.rank(), sendBuffers);
  auto to = payloadOf(std::span(route.receives), mail.rank(), receiveBuffers);
  if (from.left() != to.left()) {
    fail(seqparInternalError, "rank ", mail.rank(), " sends itself ", from.left(), " bytes and receives ", to.left());
  }
  while (from.left() > 0) {
    auto part = from.next(from.left());
    // No other processor has just written it, so the library's memcpy is the fastest.
    while (!part.empty()) {
      const auto into = to.next(part.size());
      if (into.data() != part.data()) std::memcpy(into.data(), part.data(), into.size());  // else in place
      part = part.subspan(into.size());
    }
  }
}

void exchangeBatch(Mailbox& mail, const Cutting& cutting, size_t batch, std::span<OutgoingPayload> outgoing,
                   std::span<IncomingPayload> incoming, Store store) {
  std::vector<OutgoingPayload*> out;
  std::vector<IncomingPayload*> in;
  for (auto& payload : outgoing) {
    if (payload.batch == batch) out.push_back(&payload);
  }
  for (auto& payload : incoming) {
    if (payload.batch == batch) in.push_back(&payload);
  }

  size_t rounds = 0;
  for (auto* payload : out) {
    sendRts(mail, *payload);
    if (!payload->to.empty()) rounds = std::max(rounds, cutting.messages(payload->bytes));
  }
  for (auto* payload : in) {
    if (byRendezvous(mail, payload->from, payload->bytes)) payload->remote = receiveRegions(mail, payload->from);
    if (payload->remote.left() == 0) rounds = std::max(rounds, cutting.messages(payload->bytes) + kLead);
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (auto* payload : out) payload->send(mail, cutting, round);
    if (round < kLead) continue;
    for (auto* payload : in) payload->receive(mail, cutting, round - kLead, store);
  }

  for (auto* payload : in) {
    if (payload->remote.left() == 0) continue;
    readRemote(mail, payload->from, payload->remote, payload->walk);
    sendFin(mail, payload->from);
  }
  for (const auto* payload : out) {
    for (const int to : payload->readers) awaitFin(mail, to);
  }
}

}  // namespace

void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers) {
  const Cutting cutting(mail);
  copyOwn(mail, route, sendBuffers, receiveBuffers);
  const size_t small = std::min(cutting.message(0), rendezvousBytes(mail));
  if (cutting.batches() == 1 && exchangeSmall(mail, route, small, sendBuffers, receiveBuffers)) return;
  auto outgoing = outgoingPayloads(mail, cutting, route.sends, sendBuffers);
  auto incoming = incomingPayloads(mail, cutting, route.receives, receiveBuffers);
  const Store store = storeOf(route.receives);
  for (size_t batch = 0; batch < cutting.batches(); ++batch) {
    exchangeBatch(mail, cutting, batch, outgoing, incoming, store);
  }
  if (store == Store::Streamed) finishParts();
}

}  // namespace seqpar
