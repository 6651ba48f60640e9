#include "exchange/device_reduction.h"

#include <map>

#include "base/convert.h"
#include "device/arena.h"
#include "exchange/device_combine.h"
#include "exchange/device_exchange.h"
#include "exchange/device_strings.h"

namespace seqpar {
namespace {

/// The bytes of every rank's string of terms.
std::map<int, std::size_t> stringBytes(const Reduction& reduction) {
  std::map<int, std::size_t> bytes;
  for (const auto& sum : reduction.sums) {
    for (const int rank : sum.from) bytes[rank] += sum.piece.bytes();
  }
  return bytes;
}

}  // namespace

void reduceOnDevice(DeviceGroup& group, const Reduction& reduction, seqparDataType_t type,
                    std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                    DeviceStream stream, const RowFactors* factors) {
  Route route;
  route.sends = reduction.sends;
  std::map<int, std::byte*> strings;
  std::vector<std::byte*> memory;
  for (const auto& [rank, bytes] : stringBytes(reduction)) {
    if (bytes == 0) continue;
    strings[rank] = group.arena().take(bytes);
    route.receives.push_back({rank, Piece{.buffer = static_cast<int>(memory.size()), .run = bytes}});
    memory.push_back(strings[rank]);
  }
  exchangeOnDevice(group, route, sendBuffers, memory, stream);

  const std::size_t rowBytes = factors == nullptr ? 0 : factors->elements * sizeOf(type);
  std::size_t before = 0;
  std::vector<ReadySum> sums;
  for (const auto& sum : reduction.sums) {
    const std::size_t bytes = sum.piece.bytes();
    if (bytes == 0 || (sum.from.empty() && !sum.existing)) continue;
    ReadySum ready;
    ready.piece = makePiece(sum.piece, receiveBuffers[static_cast<std::size_t>(sum.piece.buffer)], 0);
    ready.existing = sum.existing;
    for (const int rank : sum.from) {
      ready.terms.push_back(strings[rank]);
      strings[rank] += bytes;
      if (factors != nullptr) ready.factors.push_back(factors->term[ready.factors.size()]);
    }
    if (rowBytes != 0) ready.row = before / rowBytes;
    before += bytes;
    sums.push_back(std::move(ready));
  }
  launchSums(sums, type, rowBytes, group.processors(), stream);
}

void reduceLseOnDevice(DeviceGroup& group, const LseShards& shards, std::size_t member, const std::byte* out,
                       const float* lse, std::byte* outShard, float* lseShard, DeviceStream stream) {
  const std::size_t members = shards.out.members();
  const std::size_t tokens = shards.out.tokens[member];
  const std::size_t rows = shards.out.outer * tokens * shards.heads;
  auto* const parts = group.arena().take<float>(members * rows);
  auto* const factors = group.arena().take<float>(members * rows);
  const auto* const lseBytes = reinterpret_cast<const std::byte*>(lse);
  auto* const partsBytes = reinterpret_cast<std::byte*>(parts);
  exchangeOnDevice(group, lseRoute(shards, member), std::span(&lseBytes, 1), std::span(&partsBytes, 1), stream);
  launchLseMerge(parts, lseShard, factors, static_cast<int>(members), shards.out.outer, shards.heads, tokens, stream);

  RowFactors rowFactors;
  rowFactors.elements = shards.heads == 0 ? 0 : shards.out.inner / shards.heads / sizeOf(shards.type);
  for (std::size_t m = 0; m < members; ++m) rowFactors.term.push_back(factors + m * rows);
  reduceOnDevice(group, scatterSum(shards.out, member), shards.type, std::span(&out, 1), std::span(&outShard, 1),
                 stream, &rowFactors);
}

}  // namespace seqpar
