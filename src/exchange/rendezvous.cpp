#include "exchange/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace seqpar {
namespace {

/// Reading shorter runs from another process costs more than copying them twice.
constexpr size_t kLeastRun = size_t{4} << 10;
/// Shorter runs are read together and then scattered.
constexpr size_t kLeastPart = 512;
/// Bytes read at once; they are still in the caches when they are scattered.
constexpr size_t kAtOnce = size_t{256} << 10;
/// From this size on, a payload for several receivers is read in place: smaller ones are faster from one shared
/// message.
constexpr size_t kSharedOffered = size_t{1} << 20;
/// The same as Mailbox::kMostMessages for a payload of several runs between two ranks, which both copy faster than the
/// kernel.
constexpr size_t kMostScattered = size_t{64} << 20;
/// Payloads with more regions are sent in messages.
constexpr size_t kMostRegions = 16;

/// A region at its address in the sender's memory.
struct OfferedRegion {
  uint64_t address;
  uint64_t run;
  std::array<uint64_t, 3> count;
  std::array<uint64_t, 3> stride;
};

StridedRegion regionOf(const OfferedRegion& offered) {
  StridedRegion region;
  region.run = offered.run;
  std::copy(offered.count.begin(), offered.count.end(), region.count.begin());
  std::copy(offered.stride.begin(), offered.stride.end(), region.stride.begin());
  return region;
}

/// The RTS of a payload.
struct OfferedPayload {
  uint64_t regions;  ///< 0: messages follow
  uint64_t address;  ///< of a contiguous payload; 0: a message with the regions follows
  uint64_t bytes;
};

bool isOneRun(const OutgoingPayload& payload) {
  const auto placed = payload.walk.placed();
  return placed.size() == 1 && placed[0].region.run == payload.bytes;
}

/// True if receivers may read a payload in place instead of receiving messages.
bool worthRendezvous(const OutgoingPayload& payload) {
  const auto placed = payload.walk.placed();
  const size_t least = payload.to.size() == 1 ? kRendezvousBytes : kSharedOffered;
  if (placed.size() > kMostRegions || payload.bytes < least) return false;
  return std::all_of(placed.begin(), placed.end(), [](const auto& each) { return each.region.run >= kLeastRun; });
}

/// True if the payload's receivers can copy it from this rank's buffers, if they map them.
bool isShared(const Mailbox& mail, const OutgoingPayload& payload) {
  const auto placed = payload.walk.placed();
  if (placed.size() > kMostRegions || payload.bytes < Mailbox::kLeastMapped) return false;
  // The messages with the regions for all peers must fit the window.
  const size_t message = isOneRun(payload) ? 0 : placed.size() * sizeof(OfferedRegion);
  if (message > mail.maxMessage() || message * static_cast<size_t>(mail.size()) > mail.window() / 4) return false;
  return std::all_of(placed.begin(), placed.end(), [&](const auto& each) {
    const auto extent = extentOf(each.region);
    return extent && mail.shared(each.buffer + each.region.offset, *extent);
  });
}

/// Gives the regions of a peer their addresses here, if this rank maps them all.
bool translate(Mailbox& mail, int from, std::span<OfferedRegion> regions) {
  if (!mail.mapped(from)) return false;
  std::vector<uint64_t> addresses;
  for (const OfferedRegion& each : regions) {
    const auto extent = extentOf(regionOf(each));
    const std::byte* const here = extent ? mail.view(from, each.address, *extent) : nullptr;
    if (here == nullptr) return false;
    addresses.push_back(reinterpret_cast<uint64_t>(here));
  }
  for (size_t i = 0; i < regions.size(); ++i) regions[i].address = addresses[i];
  return true;
}

/// Sends the RTS with the payload's addresses; without addresses if not `inPlace`: then messages follow.
void sendAddresses(Mailbox& mail, int to, const OutgoingPayload& payload, bool inPlace) {
  const auto placed = payload.walk.placed();
  OfferedPayload rts{inPlace ? placed.size() : 0, 0, payload.bytes};
  if (rts.regions != 0 && isOneRun(payload)) {
    rts.address = reinterpret_cast<uint64_t>(placed[0].buffer + placed[0].region.offset);
  }
  copyTo(mail.acquire(to, sizeof(rts)), &rts, sizeof(rts));
  mail.commit();
  if (!inPlace || rts.address != 0) return;
  std::vector<OfferedRegion> regions;
  for (const auto& [region, buffer] : placed) {
    const auto address = reinterpret_cast<uint64_t>(buffer + region.offset);
    regions.push_back({address,
                       region.run,
                       {region.count[0], region.count[1], region.count[2]},
                       {region.stride[0], region.stride[1], region.stride[2]}});
  }
  const size_t bytes = regions.size() * sizeof(OfferedRegion);
  copyTo(mail.acquire(to, bytes), regions.data(), bytes);
  mail.commit();
}

}  // namespace

void sendRts(Mailbox& mail, OutgoingPayload& payload) {
  const bool worth = worthRendezvous(payload), shared = isShared(mail, payload);
  const bool scattered = mail.size() == 2 && payload.walk.contiguous() != payload.bytes;
  // Payloads of this size to all ranks at once: their messages share the caches.
  const size_t most =
      scattered ? kMostScattered : Mailbox::kMostMessages / static_cast<size_t>(std::max(1, mail.size() - 1));
  std::erase_if(payload.to, [&](int to) {
    if (!byRendezvous(mail, to, payload.bytes)) return false;
    const bool inPlace = (shared && mail.mapped(to)) ||
                         (worth && mail.readable(to) && (payload.bytes >= most || !mail.prefersMessages(to)));
    sendAddresses(mail, to, payload, inPlace);
    if (inPlace) payload.readers.push_back(to);
    return inPlace;
  });
}

RemotePayload receiveRegions(Mailbox& mail, int from) {
  OfferedPayload rts{};
  std::memcpy(&rts, mail.receive(from, sizeof(rts)), sizeof(rts));
  mail.release(from);
  RemotePayload remote;
  if (rts.regions == 0) return remote;
  std::vector<OfferedRegion> regions(rts.regions);
  if (rts.address != 0) {
    regions[0] = {rts.address, rts.bytes, {1, 1, 1}, {0, 0, 0}};
  } else {
    const size_t bytes = regions.size() * sizeof(OfferedRegion);
    std::memcpy(regions.data(), mail.receive(from, bytes), bytes);
    mail.release(from);
  }
  remote.mapped = translate(mail, from, regions);
  for (const OfferedRegion& each : regions) {
    // If it is not mapped, an address of another process, which only the operating system dereferences.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    remote.walk.add(regionOf(each), reinterpret_cast<const std::byte*>(each.address));
  }
  return remote;
}

void readRemote(Mailbox& mail, int from, RemotePayload& remote, std::span<const std::span<std::byte>> into) {
  if (remote.mapped) {
    for (auto part : into) pack(part.data(), remote.walk, part.size());
    return mail.endViews(from);
  }
  size_t room = 0;
  for (const auto part : into) room += part.size();
  std::vector<RemoteBytes> parts;
  for (size_t listed = 0; listed < room; listed += parts.back().bytes) {
    const auto part = remote.walk.next(room - listed);
    parts.push_back({reinterpret_cast<uint64_t>(part.data()), part.size()});
  }
  mail.read(from, parts, into);
}

void readRemote(Mailbox& mail, int from, RemotePayload& remote, RegionWalk<std::byte>& into, Store store) {
  requireLength(mail, from, remote, into.left());
  if (remote.mapped) {
    while (into.left() > 0) {
      const auto part = remote.walk.next(into.left());
      if (store == Store::Streamed) prefetchRun(remote.walk);  // loads behind streamed stores start late
      unpack(into, part.data(), part.size(), store);
    }
    return mail.endViews(from);
  }
  std::vector<std::span<std::byte>> parts;
  std::vector<std::byte> scratch;
  while (into.left() > 0) {
    const size_t bytes = std::min(kAtOnce, into.left());
    parts.clear();
    if (into.contiguous() < std::min(kLeastPart, bytes)) {
      scratch.resize(bytes);
      parts.emplace_back(scratch);
      readRemote(mail, from, remote, parts);
      unpack(into, scratch.data(), bytes);
      continue;
    }
    for (size_t listed = 0; listed < bytes; listed += parts.back().size()) parts.push_back(into.next(bytes - listed));
    readRemote(mail, from, remote, parts);
  }
}

void requireLength(const Mailbox& mail, int from, const RemotePayload& remote, size_t expected) {
  if (remote.walk.left() == expected) return;
  fail(seqparInternalError, "rank ", mail.rank(), " expects ", expected, " bytes from rank ", from, ", which has ",
       remote.walk.left(), ": the ranks disagree about the operation");
}

}  // namespace seqpar
