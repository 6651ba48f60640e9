#include "scan/message.h"

#include "base/convert.h"

namespace seqpar {

namespace {

size_t roundUp(size_t bytes) {
  return (bytes + MessageBuffer::kAlignment - 1) / MessageBuffer::kAlignment * MessageBuffer::kAlignment;
}

}  // namespace

MapLayout::MapLayout(const Affine& affine, const ScanProblem& problem, Block block, MapKind kind)
    : wireType_(problem.wireType),
      absolute_(kind == MapKind::Absolute),
      stateBytes_(affine.stateElements(block) * sizeOf(wireType_)),
      stateOffset_(absolute_ ? 0 : roundUp(affine.coefficientElements(block) * sizeof(float))) {}

void MapLayout::pack(Affine& affine, Block block, Target message) const {
  if (!absolute_) affine.packCoefficients(block, coefficients(message.data));
  affine.packState(block, state(message));
}

}  // namespace seqpar
