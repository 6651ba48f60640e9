#include "mesh/steps.h"

#include "base/convert.h"

namespace seqpar {
namespace {

StridedRegion whole(size_t buffer, size_t bytes) {
  StridedRegion region;
  region.buffer = static_cast<int>(buffer);
  region.run = bytes;
  return region;
}

}  // namespace

void MeshShift::add(const void* send, size_t bytes, void* receive, size_t received) {
  sends.push_back(static_cast<const std::byte*>(send));
  receives.push_back(static_cast<std::byte*>(receive));
  sendBytes.push_back(bytes);
  receiveBytes.push_back(received);
}

Route MeshShift::route(const MeshGroup& group) const {
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

MeshShift shiftOf(const OutputStep& step, const void* out) {
  const size_t carryRows = step.carryTokens * step.shape.heads;
  const size_t element = sizeOf(step.types.wire);
  MeshShift shift;
  shift.add(out, step.shape.elements() * element, step.carry, carryRows * step.shape.dim * element);
  shift.add(step.lse, step.shape.rows() * sizeof(float), step.carryLse, carryRows * sizeof(float));
  return shift;
}

}  // namespace seqpar
