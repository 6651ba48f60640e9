#include "mesh/steps.h"

#include "base/convert.h"
#include "exchange/exchange.h"

namespace seqpar {
namespace {

StridedRegion whole(size_t buffer, size_t bytes) {
  StridedRegion region;
  region.buffer = static_cast<int>(buffer);
  region.run = bytes;
  return region;
}

/// One tensor of a send step: what goes out, and where the next one comes in.
struct Moving {
  const void* send;
  size_t sendBytes;
  void* receive;
  size_t receiveBytes;
};

void shift(Mailbox& mail, const MeshGroup& group, std::span<const Moving> parts) {
  std::vector<size_t> sendBytes, receiveBytes;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  for (const auto& part : parts) {
    sendBytes.push_back(part.sendBytes);
    receiveBytes.push_back(part.receiveBytes);
    sends.push_back(static_cast<const std::byte*>(part.send));
    receives.push_back(static_cast<std::byte*>(part.receive));
  }
  exchangeOnHost(mail, shiftRoute(group, sendBytes, receiveBytes), sends, receives);
}

/// What a step's partial results are afterwards: as they travel, or, in the last, as they are held.
seqparDataType_t resultType(int index, PartialTypes types) {
  return index == 0 ? types.data : types.wire;
}

}  // namespace

Route shiftRoute(const MeshGroup& group, std::span<const size_t> sendBytes, std::span<const size_t> receiveBytes) {
  Route route;
  for (size_t k = 0; k < sendBytes.size(); ++k) route.sends.push_back({group.successor(), whole(k, sendBytes[k])});
  for (size_t k = 0; k < receiveBytes.size(); ++k) {
    route.receives.push_back({group.predecessor(), whole(k, receiveBytes[k])});
  }
  return route;
}

Shards groupShards(const MeshGroup& group, std::vector<size_t> tokens, size_t inner) {
  Shards shards;
  shards.tokens = std::move(tokens);
  shards.inner = inner;
  shards.ranks = group.ranks;
  return shards;
}

void reduceOutputs(Mailbox& mail, const OutputStep& step) {
  const bool merges = step.index != 1;
  mergeOutputs(step.o, step.lse, merges ? step.carry : nullptr, merges ? step.carryLse : nullptr, step.shape,
               step.types, resultType(step.index, step.types));
  if (step.index == 0) return;
  const size_t carryRows = step.carryTokens * step.shape.heads;
  const size_t element = sizeOf(step.types.wire);
  const Moving parts[] = {{step.o, step.shape.elements() * element, step.carry, carryRows * step.shape.dim * element},
                          {step.lse, step.shape.rows() * sizeof(float), step.carryLse, carryRows * sizeof(float)}};
  shift(mail, step.group, parts);
}

void reduceSums(Mailbox& mail, const SumStep& step) {
  std::vector<Moving> moving;
  const size_t element = sizeOf(step.types.wire);
  for (const auto& part : step.parts) {
    addSums(part.data, step.index == 1 ? nullptr : part.carry, part.count, step.types,
            resultType(step.index, step.types));
    moving.push_back({part.data, part.count * element, part.carry, part.carryCount * element});
  }
  if (step.index > 0) shift(mail, step.group, moving);
}

}  // namespace seqpar
