#include "exchange/offers.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace seqpar {
namespace {

/// Shorter runs than these cost more to find in another process than to copy twice.
constexpr size_t kLeastRun = size_t{4} << 10;
/// Shorter runs than these are read together and then put in place.
constexpr size_t kLeastPart = 512;
/// Read at once; where it is put in place after that, it still is in the caches.
constexpr size_t kAtOnce = size_t{256} << 10;
/// Strings for several receivers are read from here on: less are faster out of one message that all of them read.
constexpr size_t kSharedOffered = size_t{1} << 20;
/// More pieces are not described.
constexpr size_t kMostPieces = 16;

/// A piece as it lies in the memory of its sender.
struct OfferedPiece {
  uint64_t address;
  uint64_t run;
  std::array<uint64_t, 3> count;
  std::array<uint64_t, 3> stride;
};

void sendEmpty(Mailbox& mail, int to) {
  mail.acquire(to, 0);
  mail.commit();
}

void receiveEmpty(Mailbox& mail, int from) {
  mail.receive(from, 0);
  mail.release(from);
}

/// True if a string is better read by its receivers than sent in messages.
bool worthOffering(const OutgoingString& string) {
  const auto regions = string.walk.regions();
  if (regions.size() > kMostPieces || string.bytes < (string.to.size() == 1 ? kOffered : kSharedOffered)) return false;
  return std::all_of(regions.begin(), regions.end(), [](const auto& region) { return region.piece.run >= kLeastRun; });
}

/// Says where the string lies; `offered` false: it will be sent in messages.
void sendOffer(Mailbox& mail, int to, const OutgoingString& string, bool offered) {
  const auto regions = string.walk.regions();
  const uint64_t count = offered ? regions.size() : 0;
  copyTo(mail.acquire(to, sizeof(count)), &count, sizeof(count));
  mail.commit();
  if (!offered) return;
  std::vector<OfferedPiece> pieces;
  for (const auto& [piece, buffer] : regions) {
    const auto address = reinterpret_cast<uint64_t>(buffer + piece.offset);
    pieces.push_back({address,
                      piece.run,
                      {piece.count[0], piece.count[1], piece.count[2]},
                      {piece.stride[0], piece.stride[1], piece.stride[2]}});
  }
  const size_t bytes = pieces.size() * sizeof(OfferedPiece);
  copyTo(mail.acquire(to, bytes), pieces.data(), bytes);
  mail.commit();
}

}  // namespace

void offer(Mailbox& mail, OutgoingString& string) {
  const bool offered = worthOffering(string);
  std::vector<int> others;
  for (const int to : string.to) {
    const bool told = mayOffer(mail, to, string.bytes);
    if (told) sendOffer(mail, to, string, offered);
    (told && offered ? string.readers : others).push_back(to);
  }
  string.to = std::move(others);
}

PieceWalk<const std::byte> receiveOffer(Mailbox& mail, int from) {
  uint64_t count = 0;
  std::memcpy(&count, mail.receive(from, sizeof(count)), sizeof(count));
  mail.release(from);
  PieceWalk<const std::byte> offer;
  if (count == 0) return offer;
  std::vector<OfferedPiece> pieces(count);
  std::memcpy(pieces.data(), mail.receive(from, count * sizeof(OfferedPiece)), count * sizeof(OfferedPiece));
  mail.release(from);
  for (const OfferedPiece& each : pieces) {
    Piece piece;
    piece.run = each.run;
    std::copy(each.count.begin(), each.count.end(), piece.count.begin());
    std::copy(each.stride.begin(), each.stride.end(), piece.stride.begin());
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process, which only the kernel follows.
    offer.add(piece, reinterpret_cast<const std::byte*>(each.address));
  }
  return offer;
}

void readOffer(Mailbox& mail, int from, PieceWalk<const std::byte>& offer, std::span<const std::span<std::byte>> into) {
  size_t room = 0;
  for (const auto part : into) room += part.size();
  std::vector<RemoteBytes> parts;
  for (size_t listed = 0; listed < room; listed += parts.back().bytes) {
    const auto part = offer.next(room - listed);
    parts.push_back({reinterpret_cast<uint64_t>(part.data()), part.size()});
  }
  mail.read(from, parts, into);
}

void readOffer(Mailbox& mail, int from, PieceWalk<const std::byte>& offer, PieceWalk<std::byte>& into) {
  requireLength(mail, from, offer, into.left());
  std::vector<std::span<std::byte>> parts;
  std::vector<std::byte> scratch;
  while (into.left() > 0) {
    const size_t bytes = std::min(kAtOnce, into.left());
    parts.clear();
    if (into.contiguous() < std::min(kLeastPart, bytes)) {
      scratch.resize(bytes);
      parts.emplace_back(scratch);
      readOffer(mail, from, offer, parts);
      unpack(into, scratch.data(), bytes);
      continue;
    }
    for (size_t listed = 0; listed < bytes; listed += parts.back().size()) parts.push_back(into.next(bytes - listed));
    readOffer(mail, from, offer, parts);
  }
}

void requireLength(const Mailbox& mail, int from, const PieceWalk<const std::byte>& offer, size_t expected) {
  if (offer.left() == expected) return;
  fail(seqparInternalError, "rank ", mail.rank(), " expects ", expected, " bytes from rank ", from, ", which offers ",
       offer.left(), ": the ranks disagree about the operation");
}

void thankForOffer(Mailbox& mail, int from) {
  sendEmpty(mail, from);
}

void finishOffer(Mailbox& mail, int to) {
  receiveEmpty(mail, to);
  sendEmpty(mail, to);
}

void confirmOffer(Mailbox& mail, int from) {
  receiveEmpty(mail, from);
}

}  // namespace seqpar
