#include "exchange/device_reduction.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "device/arena.h"
#include "exchange/device_combine.h"
#include "exchange/device_payloads.h"

namespace seqpar {
namespace {

/// The gather of all terms to this GPU: one payload of terms per rank.
struct Gathering {
  Route route;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> into;
  std::map<int, const std::byte*> payloads;
};

/// The address of the term that `rank` sends to itself, if that is one run; else null.
const std::byte* ownRun(const Reduction& reduction, int rank, std::span<const std::byte* const> buffers) {
  const Transfer* only = nullptr;
  for (const auto& transfer : reduction.sends) {
    if (transfer.peer != rank || transfer.region.bytes() == 0) continue;
    if (only != nullptr) return nullptr;
    only = &transfer;
  }
  if (only == nullptr) return nullptr;
  const auto* const buffer = buffers[static_cast<std::size_t>(only->region.buffer)];
  const auto made = makeRegion(only->region, buffer, 0);
  return made.run.by == 0 ? made.base : nullptr;
}

/// A rank's sends in a reduction; the rank's own term is left out, and its address kept, if it is one run.
struct Outgoing {
  Outgoing(const Reduction& reduction, int rank, std::span<const std::byte* const> sendBuffers)
      : buffers(sendBuffers), own(ownRun(reduction, rank, sendBuffers)) {
    std::copy_if(reduction.sends.begin(), reduction.sends.end(), std::back_inserter(sends),
                 [&](const Transfer& transfer) { return own == nullptr || transfer.peer != rank; });
  }

  std::span<const std::byte* const> buffers;
  const std::byte* own;
  std::vector<Transfer> sends;
};

Gathering gatherTerms(DeviceGroup& group, const Reduction& reduction, const Outgoing& out) {
  std::map<int, std::size_t> bytes;
  for (const auto& sum : reduction.sums) {
    for (const int rank : sum.from) bytes[rank] += sum.region.bytes();
  }
  Gathering made;
  made.from.assign(out.buffers.begin(), out.buffers.end());
  made.route.sends = out.sends;
  made.route.ctas = reduction.ctas;
  for (const auto& [rank, count] : bytes) {
    if (count == 0) continue;
    if (out.own != nullptr && rank == group.rank()) {
      made.payloads[rank] = out.own;
      continue;
    }
    auto* const memory = group.arena().take(count);
    made.payloads[rank] = memory;
    made.route.receives.push_back({rank, StridedRegion{.buffer = static_cast<int>(made.into.size()), .run = count}});
    made.into.push_back(memory);
  }
  return made;
}

std::vector<ReadySum> readySums(const Reduction& reduction, std::map<int, const std::byte*> payloads,
                                std::span<std::byte* const> receiveBuffers) {
  std::vector<ReadySum> sums;
  for (const auto& sum : reduction.sums) {
    const std::size_t bytes = sum.region.bytes();
    if (bytes == 0 || (sum.from.empty() && !sum.existing)) continue;
    ReadySum ready;
    ready.region = makeRegion(sum.region, receiveBuffers[static_cast<std::size_t>(sum.region.buffer)], 0);
    ready.existing = sum.existing;
    for (const int rank : sum.from) {
      ready.terms.push_back(payloads[rank]);
      payloads[rank] += bytes;
    }
    sums.push_back(std::move(ready));
  }
  return sums;
}

/// Whether outputs and log-sum-exps can share one payload per rank without breaking its alignment.
bool canJoin(const LseShards& shards) {
  const auto& out = shards.out;
  return std::all_of(out.tokens.begin(), out.tokens.end(), [&](std::size_t tokens) {
    return tokens * sizeof(float) % 16 == 0 && tokens * out.inner % 16 == 0;
  });
}

/// Appends the transfers of a second route and its only buffer.
template <typename Buffer>
void join(std::vector<Transfer>& transfers, std::vector<Buffer>& buffers, const std::vector<Transfer>& more,
          Buffer buffer) {
  for (Transfer transfer : more) {
    transfer.region.buffer = static_cast<int>(buffers.size());
    transfers.push_back(transfer);
  }
  buffers.push_back(buffer);
}

}  // namespace

void reduceOnDevice(const DeviceExchanges& by, DeviceGroup& group, const Reduction& reduction, seqparDataType_t type,
                    std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                    DeviceStream stream) {
  const Outgoing out(reduction, group.rank(), sendBuffers);
  if (reduction.sums.size() == 1) {
    const Sum& sum = reduction.sums.front();
    auto* const buffer = receiveBuffers[static_cast<std::size_t>(sum.region.buffer)];
    if (by.recvReduce(group, {out.sends, sum, out.own, reduction.ctas}, sendBuffers, buffer, type, stream)) return;
  }
  const Gathering gathering = gatherTerms(group, reduction, out);
  by.move(group, gathering.route, gathering.from, gathering.into, stream);
  launchSums(readySums(reduction, gathering.payloads, receiveBuffers), type, group.smCount(), stream);
}

void reduceLseOnDevice(const DeviceExchanges& by, DeviceGroup& group, const LseReduction& given, DeviceStream stream) {
  const LseShards& shards = given.shards;
  const std::size_t member = given.member;
  device::LseArgs weights;
  weights.members = static_cast<int>(shards.out.members());
  weights.tokens = shards.out.tokens[member];
  weights.heads = shards.heads;
  weights.rows = shards.out.outer * shards.heads * weights.tokens;
  weights.rowBytes = shards.heads == 0 ? 0 : shards.out.inner / shards.heads;
  weights.merged = given.lseShard;
  auto* const parts = group.arena().take<float>(shards.out.members() * weights.rows);
  weights.parts = parts;

  const Route logarithms = lseRoute(shards, member);
  const auto* const lseBytes = reinterpret_cast<const std::byte*>(given.lse);
  auto* const partsBytes = reinterpret_cast<std::byte*>(parts);
  const Reduction outputs = scatterSum(shards.out, member);
  const Outgoing outgoing(outputs, group.rank(), std::span(&given.out, 1));
  Gathering gathering = gatherTerms(group, outputs, outgoing);
  if (by.joinsRegions() && canJoin(shards)) {
    join(gathering.route.sends, gathering.from, logarithms.sends, lseBytes);
    join(gathering.route.receives, gathering.into, logarithms.receives, partsBytes);
  } else {
    by.move(group, logarithms, std::span(&lseBytes, 1), std::span(&partsBytes, 1), stream);
  }
  by.move(group, gathering.route, gathering.from, gathering.into, stream);
  launchSums(readySums(outputs, gathering.payloads, std::span(&given.outShard, 1)), shards.type, group.smCount(),
             stream, weights);
}

}  // namespace seqpar
