#include "exchange/offers.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace seqpar {
namespace {

/// Shorter runs are read together and then put in place: a read has a price of its own.
constexpr size_t kLeastRead = size_t{64} << 10;
/// As much as stays in the caches until it is put in place.
constexpr size_t kScratch = size_t{256} << 10;

void sendEmpty(Mailbox& mail, int to) {
  mail.acquire(to, 0);
  mail.commit();
}

void receiveEmpty(Mailbox& mail, int from) {
  mail.receive(from, 0);
  mail.release(from);
}

}  // namespace

void sendOffer(Mailbox& mail, int to, uint64_t address) {
  copyTo(mail.acquire(to, sizeof(address)), &address, sizeof(address));
  mail.commit();
}

uint64_t receiveOffer(Mailbox& mail, int from) {
  uint64_t address = 0;
  std::memcpy(&address, mail.receive(from, sizeof(address)), sizeof(address));
  mail.release(from);
  return address;
}

void takeOffer(Mailbox& mail, int from, uint64_t address, PieceWalk<std::byte>& into) {
  std::unique_ptr<std::byte[]> scratch;
  while (into.left() > 0) {
    size_t bytes = 0;
    if (into.contiguous() >= std::min(kLeastRead, into.left())) {
      const auto part = into.next(into.left());
      bytes = part.size();
      mail.read(from, address, part);
    } else {
      if (scratch == nullptr) scratch = std::make_unique_for_overwrite<std::byte[]>(kScratch);
      bytes = std::min(kScratch, into.left());
      mail.read(from, address, {scratch.get(), bytes});
      unpack(into, scratch.get(), bytes);
    }
    address += bytes;
  }
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
