#include "exchange/device_payloads.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace seqpar {
namespace {

/// Longer payloads are sent in chunks, which need a fence and a second round trip, but a quarter less link bandwidth.
constexpr std::uint64_t kMostByPackets = 2 << 20;
/// With fewer bytes per channel, additional channels cost more in waiting than they save in copying.
constexpr std::uint64_t kLeastByPackets = std::uint64_t{2} * ByteFifoLayout::kBlockBytes;
constexpr std::uint64_t kLeastByChunks = 8192;

std::uint64_t roundUp(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

/// Bytes per channel if each channel shall have at least `least`.
std::uint64_t partFor(std::uint64_t bytes, std::uint64_t least, int channels) {
  const auto used = std::clamp<std::uint64_t>((bytes + least - 1) / least, 1, static_cast<std::uint64_t>(channels));
  return roundUp((bytes + used - 1) / used, 128);
}

device::Divider dividerBy(std::uint32_t number) {
  std::uint32_t log = 0;
  while (std::uint64_t{1} << log < number) ++log;
  const std::uint32_t shift = 31 + log;
  return {number, static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + number - 1) / number), shift};
}

/// The largest of 16, 8, 4, 2, 1 that divides all values or-ed into `bits`.
std::uint16_t widthOf(std::uint64_t bits) {
  for (const std::uint16_t width : {16, 8, 4, 2}) {
    if (bits % width == 0) return width;
  }
  return 1;
}

}  // namespace

device::RegionArg makeRegion(const StridedRegion& region, const std::byte* buffer, std::uint64_t begin) {
  device::RegionArg made{};
  // NOLINTNEXTLINE: send buffers are never written
  made.base = const_cast<std::byte*>(buffer) + region.offset;
  made.begin = begin;
  made.bytes = region.bytes();
  std::uint64_t bits = begin | reinterpret_cast<std::uint64_t>(made.base);
  // Runs without a gap between them are merged.
  std::size_t run = region.run;
  std::size_t dimension = region.count.size();
  while (dimension > 0 && (region.count[dimension - 1] == 1 || region.stride[dimension - 1] == run)) {
    run *= region.count[--dimension];
  }
  if (dimension == 0) {
    made.count1 = made.count2 = dividerBy(1);
    made.width = widthOf(bits);
    return made;
  }
  // The remaining counts move to the end, the fast index.
  std::array<std::uint64_t, 3> count{1, 1, 1};
  for (std::size_t i = 0; i < dimension; ++i) {
    count[i + 3 - dimension] = region.count[i];
    made.stride[i + 3 - dimension] = region.stride[i];
    if (region.count[i] > 1) bits |= region.stride[i];
  }
  if (run > std::numeric_limits<std::uint32_t>::max() || made.bytes / run > std::numeric_limits<std::uint32_t>::max()) {
    fail(seqparInvalidUsage, "a region of ", made.bytes, " bytes in runs of ", run,
         "; expected fewer than 2^32 runs of fewer than 2^32 bytes");
  }
  made.width = widthOf(bits | run);
  while (1U << made.shift < made.width) ++made.shift;
  made.run = dividerBy(static_cast<std::uint32_t>(run / made.width));
  made.count1 = dividerBy(static_cast<std::uint32_t>(count[1]));
  made.count2 = dividerBy(static_cast<std::uint32_t>(count[2]));
  made.huge = made.bytes / made.width >> 31 != 0;
  return made;
}

int channelsOf(const PeerView& view, int ctas) {
  return ctas == 0 ? view.byteFifoChannels : std::min(ctas, view.byteFifoChannels);
}

void shareAmong(device::PeerPayload& payload, int channels) {
  payload.each = partFor(payload.bytes, kLeastByPackets, channels);
  payload.chunk = 0;
  if (payload.bytes > kMostByPackets ||
      payload.each > std::uint64_t{ByteFifoLayout::kMostBlocks} * ByteFifoLayout::kBlockBytes) {
    payload.each = partFor(payload.bytes, kLeastByChunks, channels);
    const auto chunk = roundUp((payload.each + ByteFifoLayout::kWarpFifos - 1) / ByteFifoLayout::kWarpFifos, 512);
    payload.chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, ByteFifoLayout::kChunk));
  }
  payload.channels = static_cast<int>((payload.bytes + payload.each - 1) / payload.each);
}

bool isLong(std::uint64_t bytes, int channels) {
  device::PeerPayload payload{};
  payload.bytes = bytes;
  if (bytes > 0) shareAmong(payload, channels);
  return payload.chunk != 0;
}

void orderForPeers(DevicePayloads& payloads, std::span<const int> ranks, const PeerView& view, Order order) {
  const auto distance = [&](const device::PeerPayload& payload) {
    return (order == Order::Upwards ? payload.peer - view.self + view.size : view.self - payload.peer + view.size) %
           view.size;
  };
  for (auto& payload : payloads.others) {
    payload.peer = static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), payload.peer) - ranks.begin());
    payload.end = {view.byteFifos[view.self] + ByteFifoLayout::end(payload.peer, 0, view.byteFifoChannels),
                   view.byteFifos[payload.peer] + ByteFifoLayout::end(view.self, 0, view.byteFifoChannels),
                   reinterpret_cast<ByteFifoState*>(view.byteFifoState) +
                       ByteFifoLayout::number(payload.peer, 0, view.byteFifoChannels)};
  }
  std::sort(payloads.others.begin(), payloads.others.end(),
            [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

namespace {

device::Vec16Kind unitsOf(std::span<const device::RegionArg> regions) {
  const auto whole = [](const device::RegionArg& region) { return region.width == 16 && region.bytes % 16 == 0; };
  if (std::all_of(regions.begin(), regions.end(), whole)) return device::Vec16Kind::Whole;
  const auto& first = regions.front();
  const bool words = regions.size() == 1 && first.run.by == 0 && first.width % 4 == 0 && first.bytes % 4 == 0;
  return words ? device::Vec16Kind::Words : device::Vec16Kind::Narrow;
}

/// Completes a payload that has all of its regions, and adds it unless it is empty.
void addPayload(DevicePayloads& made, device::PeerPayload payload, int rank, int channels) {
  if (payload.count == 0) return;
  payload.vecs = unitsOf(std::span(made.regions).last(static_cast<std::size_t>(payload.count)));
  shareAmong(payload, channels);
  if (payload.peer == rank) {
    made.self = payload;
  } else {
    made.others.push_back(payload);
  }
}

template <typename Byte>
DevicePayloads tensorPayload(int peer, std::span<const std::span<Byte>> tensors, int rank, int channels, int first) {
  DevicePayloads made;
  if (peer == SEQPAR_NO_PEER) return made;
  device::PeerPayload payload{};
  payload.peer = peer;
  payload.first = first;
  for (const auto& tensor : tensors) {
    if (tensor.empty()) continue;
    made.regions.push_back(makeRegion({.run = tensor.size()}, tensor.data(), payload.bytes));
    payload.bytes += tensor.size();
    ++payload.count;
  }
  addPayload(made, payload, rank, channels);
  return made;
}

}  // namespace

DevicePayloads makePayloads(int peer, std::span<const std::span<const std::byte>> tensors, int rank, int channels,
                            int first) {
  return tensorPayload(peer, tensors, rank, channels, first);
}

DevicePayloads makePayloads(int peer, std::span<const std::span<std::byte>> tensors, int rank, int channels,
                            int first) {
  return tensorPayload(peer, tensors, rank, channels, first);
}

DevicePayloads makePayloads(std::span<const Transfer> transfers, std::span<const std::byte* const> buffers, int rank,
                            int ranks, int channels, int first) {
  DevicePayloads made;
  std::vector<std::vector<const StridedRegion*>> byRank(static_cast<std::size_t>(ranks));
  for (const auto& transfer : transfers) {
    if (transfer.region.bytes() > 0) byRank[static_cast<std::size_t>(transfer.peer)].push_back(&transfer.region);
  }
  for (int peer = 0; peer < ranks; ++peer) {
    const auto& regions = byRank[static_cast<std::size_t>(peer)];
    if (regions.empty()) continue;
    device::PeerPayload payload{};
    payload.peer = peer;
    payload.first = first + static_cast<int>(made.regions.size());
    payload.count = static_cast<int>(regions.size());
    for (const StridedRegion* region : regions) {
      made.regions.push_back(makeRegion(*region, buffers[static_cast<std::size_t>(region->buffer)], payload.bytes));
      payload.bytes += region->bytes();
    }
    addPayload(made, payload, rank, channels);
  }
  return made;
}

}  // namespace seqpar
