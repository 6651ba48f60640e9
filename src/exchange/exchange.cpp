#include "exchange/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "exchange/rendezvous.h"
#include "exchange/small.h"
#include "transport/caches.h"

namespace seqpar {
namespace {

/// From this size on, the bytes that a rank receives in one exchange are stored past its caches: they do not fit, and
/// ordinary stores would first read them from memory.
constexpr size_t kStreamed = size_t{8} << 20;

/// From this size on, a rank's copy to itself from runs shorter than those that it writes uses ordinary stores:
/// streamed ones took 0 to 8 % longer, and a quarter less below.
constexpr size_t kLeastCachedOwn = size_t{16} << 20;

/// The same from kLeastShared on, if the bytes that all ranks of the host send and receive do not fit the last cache.
constexpr size_t kLeastShared = size_t{1} << 20;

Store storeOf(const Mailbox& mail, std::span<const Transfer> receives) {
  size_t bytes = 0, ranks = 1;
  for (const Transfer& transfer : receives) bytes += transfer.region.bytes();
  for (int rank = 0; rank < mail.size(); ++rank) ranks += mail.direct(rank) ? 1 : 0;
  const bool fits = bytes < kLeastShared || lastCacheBytes() == 0 || bytes < lastCacheBytes() / (2 * ranks);
  return bytes < kStreamed && fits ? Store::Cached : Store::Streamed;
}

bool isSmall(const Mailbox& mail, const Cutting& cutting, const Route& route) {
  return cutting.batches() == 1 && isSmall(mail, route, std::min(cutting.message(0), kRendezvousBytes));
}

/// The transfers with other ranks that have bytes, in their simplest form.
std::vector<Transfer> othersOf(const Mailbox& mail, std::span<const Transfer> transfers) {
  std::vector<Transfer> others;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == mail.rank() || transfer.region.bytes() == 0) continue;
    others.push_back({transfer.peer, simplified(transfer.region)});
  }
  return others;
}

}  // namespace

void HostExchange::Incoming::restart(std::span<std::byte* const> buffers) {
  walk.restart(buffers);
  remote = {};
}

void HostExchange::Incoming::receive(Mailbox& mail, const Cutting& cutting, size_t round, Store store) {
  if (remote.walk.left() > 0 || round >= cutting.messages(bytes)) return;
  const size_t size = cutting.messageAt(bytes, round);
  unpack(walk, mail.receive(from, size), size, store);
  mail.release(from);
}

HostExchange::HostExchange(const Mailbox& mail, const Route& route)
    : cutting_(mail),
      ownFrom_(payloadOf<const std::byte>(std::span(route.sends), mail.rank())),
      ownInto_(payloadOf<std::byte>(std::span(route.receives), mail.rank())),
      small_(isSmall(mail, cutting_, route)) {
  if (ownFrom_.left() != ownInto_.left()) {
    fail(seqparInternalError, "rank ", mail.rank(), " sends itself ", ownFrom_.left(), " bytes and receives ",
         ownInto_.left());
  }
  const auto isOneRun = [](const auto& walk) { return walk.left() > 0 && walk.contiguous() == walk.left(); };
  ownIsOneRun_ = isOneRun(ownFrom_) && isOneRun(ownInto_);
  if (small_) {
    others_ = {othersOf(mail, route.sends), othersOf(mail, route.receives)};
    return;
  }
  outgoing_ = outgoingPayloads(mail, cutting_, route.sends);
  incoming_ = incomingPayloads(mail, cutting_, route.receives);
  store_ = storeOf(mail, route.receives);
}

std::vector<HostExchange::Incoming> HostExchange::incomingPayloads(const Mailbox& mail, const Cutting& cutting,
                                                                   std::span<const Transfer> receives) {
  std::map<int, Incoming> byDistance;
  for (const Transfer& transfer : receives) {
    if (transfer.peer == mail.rank() || transfer.region.bytes() == 0) continue;
    Incoming& payload = byDistance[(mail.rank() - transfer.peer + mail.size()) % mail.size()];
    payload.from = transfer.peer;
    payload.walk.add(transfer.region, nullptr);
  }
  std::vector<Incoming> payloads;
  for (auto& [distance, payload] : byDistance) {
    payload.bytes = payload.walk.left();
    payload.batch = cutting.batchOf(payload.from, mail.rank());
    payloads.push_back(std::move(payload));
  }
  return payloads;
}

void HostExchange::copyOwn(std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers) {
  if (ownIsOneRun_) {
    const StridedRegion &from = ownFrom_.placed()[0].region, &into = ownInto_.placed()[0].region;
    const std::byte* const begin = sendBuffers[static_cast<size_t>(from.buffer)] + from.offset;
    std::byte* const to = receiveBuffers[static_cast<size_t>(into.buffer)] + into.offset;
    if (begin != to) std::memcpy(to, begin, from.run);  // else in place
    return;
  }
  ownFrom_.restart(sendBuffers);
  ownInto_.restart(receiveBuffers);
  const bool streams = ownInto_.contiguous() <= ownFrom_.contiguous() || ownFrom_.left() < kLeastCachedOwn;
  const Store store = streams ? store_ : Store::Cached;
  while (ownFrom_.left() > 0) {
    auto part = ownFrom_.next(ownFrom_.left());
    if (store_ == Store::Streamed) prefetchRun(ownFrom_);
    while (!part.empty()) {
      const auto into = ownInto_.next(part.size());
      if (into.data() == part.data()) {
        // In place.
      } else if (storeOfPart(store, into.size()) == Store::Streamed) {
        copyFrom(into.data(), part.data(), into.size(), Store::Streamed);
      } else {
        std::memcpy(into.data(), part.data(), into.size());  // no other processor has just written it: the fastest
      }
      part = part.subspan(into.size());
    }
  }
}

void HostExchange::runBatch(Mailbox& mail, size_t batch) {
  size_t rounds = 0;
  for (auto& payload : outgoing_) {
    if (payload.batch != batch) continue;
    sendRts(mail, payload);
    if (!payload.to.empty()) rounds = std::max(rounds, cutting_.messages(payload.bytes));
  }
  for (auto& payload : incoming_) {
    if (payload.batch != batch) continue;
    if (byRendezvous(mail, payload.from, payload.bytes)) payload.remote = receiveRegions(mail, payload.from);
    if (payload.remote.walk.left() == 0) rounds = std::max(rounds, cutting_.messages(payload.bytes) + kLead);
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (auto& payload : outgoing_) {
      if (payload.batch == batch) payload.send(mail, cutting_, round);
    }
    if (round < kLead) continue;
    for (auto& payload : incoming_) {
      if (payload.batch == batch) payload.receive(mail, cutting_, round - kLead, store_);
    }
  }

  for (auto& payload : incoming_) {
    if (payload.batch != batch || payload.remote.walk.left() == 0) continue;
    readRemote(mail, payload.from, payload.remote, payload.walk, store_);
    sendFin(mail, payload.from);
  }
  for (const auto& payload : outgoing_) {
    if (payload.batch != batch) continue;
    for (const int to : payload.readers) awaitFin(mail, to);
  }
}

void HostExchange::run(Mailbox& mail, std::span<const std::byte* const> sendBuffers,
                       std::span<std::byte* const> receiveBuffers) {
  if (small_) {
    sendSmall(mail, others_.sends, sendBuffers);
    copyOwn(sendBuffers, receiveBuffers);
    return receiveSmall(mail, others_.receives, receiveBuffers);
  }
  copyOwn(sendBuffers, receiveBuffers);
  for (OutgoingPayload& payload : outgoing_) payload.restart(sendBuffers);
  for (Incoming& payload : incoming_) payload.restart(receiveBuffers);
  for (size_t batch = 0; batch < cutting_.batches(); ++batch) runBatch(mail, batch);
  if (store_ == Store::Streamed) finishParts();
}

void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers) {
  const auto own = [&](const Transfer& transfer) { return transfer.peer == mail.rank(); };
  if (std::none_of(route.sends.begin(), route.sends.end(), own) && isSmall(mail, Cutting(mail), route)) {
    sendSmall(mail, route.sends, sendBuffers);
    return receiveSmall(mail, route.receives, receiveBuffers);
  }
  HostExchange(mail, route).run(mail, sendBuffers, receiveBuffers);
}

}  // namespace seqpar
