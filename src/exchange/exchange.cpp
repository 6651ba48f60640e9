#include "exchange/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "exchange/device_exchange.h"
#include "exchange/lanes.h"
#include "exchange/offers.h"

namespace seqpar {
namespace {

/// What a rank receives in one exchange from here on goes past its caches, which have no room for it: storing into
/// them would read all of it from memory first.
constexpr size_t kStreamed = size_t{8} << 20;

Store storeOf(std::span<const Transfer> receives) {
  size_t bytes = 0;
  for (const Transfer& transfer : receives) bytes += transfer.piece.bytes();
  return bytes < kStreamed ? Store::Cached : Store::Streamed;
}

/// A string that this rank receives.
struct IncomingString {
  int from = 0;
  size_t batch = 0;
  size_t bytes = 0;
  PieceWalk<std::byte> walk;
  PieceWalk<const std::byte> offer;  ///< where to read it; nothing in it: it comes in messages

  void receive(Mailbox& mail, const Cutting& cutting, size_t round, Store store) {
    if (offer.left() > 0 || round >= cutting.messages(bytes)) return;
    const size_t size = cutting.messageAt(bytes, round);
    unpack(walk, mail.receive(from, size), size, store);
    mail.release(from);
  }
};

/// In the order in which the other ranks send: from the ranks before this one first.
std::vector<IncomingString> incomingStrings(const Mailbox& mail, const Cutting& cutting,
                                            std::span<const Transfer> receives, std::span<std::byte* const> buffers) {
  std::map<int, IncomingString> byDistance;
  for (const Transfer& transfer : receives) {
    if (transfer.peer == mail.rank() || transfer.piece.bytes() == 0) continue;
    IncomingString& string = byDistance[(mail.rank() - transfer.peer + mail.size()) % mail.size()];
    string.from = transfer.peer;
    string.walk.add(transfer.piece, buffers[static_cast<size_t>(transfer.piece.buffer)]);
  }
  std::vector<IncomingString> strings;
  for (auto& [distance, string] : byDistance) {
    string.bytes = string.walk.left();
    string.batch = cutting.batchOf(string.from, mail.rank());
    strings.push_back(std::move(string));
  }
  return strings;
}

void copyOwn(const Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
             std::span<std::byte* const> receiveBuffers) {
  auto from = stringOf(std::span(route.sends), mail.rank(), sendBuffers);
  auto to = stringOf(std::span(route.receives), mail.rank(), receiveBuffers);
  if (from.left() != to.left()) {
    fail(seqparInternalError, "rank ", mail.rank(), " sends itself ", from.left(), " bytes and receives ", to.left());
  }
  while (from.left() > 0) {
    auto part = from.next(from.left());
    // Nobody else has just written it, so the library's copy is the fastest.
    while (!part.empty()) {
      const auto into = to.next(part.size());
      if (into.data() != part.data()) std::memcpy(into.data(), part.data(), into.size());  // else in place
      part = part.subspan(into.size());
    }
  }
}

void exchangeBatch(Mailbox& mail, const Cutting& cutting, size_t batch, std::span<OutgoingString> outgoing,
                   std::span<IncomingString> incoming, Store store) {
  std::vector<OutgoingString*> out;
  std::vector<IncomingString*> in;
  for (auto& string : outgoing) {
    if (string.batch == batch) out.push_back(&string);
  }
  for (auto& string : incoming) {
    if (string.batch == batch) in.push_back(&string);
  }

  size_t rounds = 0;
  for (auto* string : out) {
    offer(mail, *string);
    if (!string->to.empty()) rounds = std::max(rounds, cutting.messages(string->bytes));
  }
  for (auto* string : in) {
    if (mayOffer(mail, string->from, string->bytes)) string->offer = receiveOffer(mail, string->from);
    if (string->offer.left() == 0) rounds = std::max(rounds, cutting.messages(string->bytes) + kLead);
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (auto* string : out) string->send(mail, cutting, round);
    if (round < kLead) continue;
    for (auto* string : in) string->receive(mail, cutting, round - kLead, store);
  }

  std::vector<int> offering;
  for (auto* string : in) {
    if (string->offer.left() == 0) continue;
    readOffer(mail, string->from, string->offer, string->walk);
    thankForOffer(mail, string->from);
    offering.push_back(string->from);
  }
  for (const auto* string : out) {
    for (const int to : string->readers) finishOffer(mail, to);
  }
  for (const int from : offering) confirmOffer(mail, from);
}

}  // namespace

void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers) {
  const Cutting cutting(mail);
  auto outgoing = outgoingStrings(mail, cutting, route.sends, sendBuffers);
  auto incoming = incomingStrings(mail, cutting, route.receives, receiveBuffers);
  const Store store = storeOf(route.receives);
  copyOwn(mail, route, sendBuffers, receiveBuffers);
  for (size_t batch = 0; batch < cutting.batches(); ++batch) {
    exchangeBatch(mail, cutting, batch, outgoing, incoming, store);
  }
  if (store == Store::Streamed) finishParts();
}

void runExchange(Communicator& comm, const char* name, std::shared_ptr<const Route> route,
                 std::vector<const std::byte*> sendBuffers, std::vector<std::byte*> receiveBuffers,
                 const CallerStream& stream) {
  if (comm.device() != nullptr) {
    return comm.enqueue(name, stream.device, [&](DeviceGroup& group) {
      exchangeOnDevice(group, *route, sendBuffers, receiveBuffers, stream.device);
    });
  }
  comm.run(name, stream.host.get(),
           [route = std::move(route), sends = std::move(sendBuffers),
            receives = std::move(receiveBuffers)](Mailbox& mail) { exchangeOnHost(mail, *route, sends, receives); });
}

}  // namespace seqpar
