#include "exchange/small.h"

#include <array>
#include <bitset>

#include "base/target.h"
#include "exchange/walk.h"

namespace seqpar {
namespace {

constexpr size_t kMostRanks = 64;

/// At most one region for each other rank, of fewer than `bytes` bytes.
bool small(const Mailbox& mail, std::span<const Transfer> transfers, size_t bytes) {
  std::bitset<kMostRanks> seen;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == mail.rank()) continue;
    const auto peer = static_cast<size_t>(transfer.peer);
    if (seen.test(peer) || transfer.region.bytes() >= bytes) return false;
    seen.set(peer);
  }
  return true;
}

/// visit(offset) for the runs of a region.
template <typename Visit>
void eachRun(const StridedRegion& region, const Visit& visit) {
  for (size_t i = 0; i < region.count[0]; ++i) {
    for (size_t j = 0; j < region.count[1]; ++j) {
      for (size_t k = 0; k < region.count[2]; ++k) {
        visit(region.offset + i * region.stride[0] + j * region.stride[1] + k * region.stride[2]);
      }
    }
  }
}

bool equal(const StridedRegion& a, const StridedRegion& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.run == b.run && a.count == b.count && a.stride == b.stride;
}

/// The ranks from transfers[first] on, without this one, that get equal bytes; `first` moves past them.
std::span<const int> receivers(const Mailbox& mail, std::span<const Transfer> transfers, size_t& first,
                               std::array<int, kMostRanks>& to) {
  size_t count = 0;
  const StridedRegion& region = transfers[first].region;
  for (; first < transfers.size() && equal(transfers[first].region, region); ++first) {
    if (transfers[first].peer != mail.rank()) to[count++] = transfers[first].peer;
  }
  return {to.data(), count};
}

void send(Mailbox& mail, std::span<const int> to, const StridedRegion& all, const std::byte* buffer) {
  const StridedRegion region = simplified(all);
  const Target message = mail.acquire(to, region.bytes());
  Target next = message;
  eachRun(region, [&](size_t offset) {
    copyPartTo(next, buffer + offset, region.run);
    next = next.after(region.run);
  });
  if (message.store == Store::Streamed) finishParts();
  mail.commit();
}

void receive(Mailbox& mail, int from, const StridedRegion& all, std::byte* buffer) {
  const StridedRegion region = simplified(all);
  const std::byte* next = mail.receive(from, region.bytes());
  eachRun(region, [&](size_t offset) {
    copyFrom(buffer + offset, next, region.run);
    next += region.run;
  });
  mail.release(from);
}

}  // namespace

bool isSmall(const Mailbox& mail, const Route& route, size_t bytes) {
  return static_cast<size_t>(mail.size()) <= kMostRanks && small(mail, route.sends, bytes) &&
         small(mail, route.receives, bytes);
}

void sendSmall(Mailbox& mail, std::span<const Transfer> sends, std::span<const std::byte* const> buffers) {
  std::array<int, kMostRanks> to;  // NOLINT(cppcoreguidelines-pro-type-member-init): receivers() sets what it returns
  for (size_t next = 0; next < sends.size();) {
    const StridedRegion& region = sends[next].region;
    const auto ranks = receivers(mail, sends, next, to);
    if (!ranks.empty() && region.bytes() > 0) send(mail, ranks, region, buffers[static_cast<size_t>(region.buffer)]);
  }
}

void receiveSmall(Mailbox& mail, std::span<const Transfer> receives, std::span<std::byte* const> buffers) {
  for (const Transfer& transfer : receives) {
    const StridedRegion& region = transfer.region;
    if (transfer.peer == mail.rank() || region.bytes() == 0) continue;
    receive(mail, transfer.peer, region, buffers[static_cast<size_t>(region.buffer)]);
  }
}

}  // namespace seqpar
