#include "scan/message.h"

#include "base/convert.h"

namespace seqpar {

namespace {

size_t roundUp(size_t bytes) {
  return (bytes + MessageBuffer::kAlignment - 1) / MessageBuffer::kAlignment * MessageBuffer::kAlignment;
}

}  // namespace

MapLayout::MapLayout(const Affine& affine, const ScanProblem& problem, Block block, MapKind kind)
    : MapLayout({affine.stateElements(block), kind == MapKind::Absolute ? 0 : affine.coefficientElements(block)},
                problem.wireType, kind) {}

MapLayout::MapLayout(BlockSize size, seqparDataType_t wireType, MapKind kind)
    : wireType_(wireType),
      absolute_(kind == MapKind::Absolute),
      stateBytes_(size.state * sizeOf(wireType)),
      stateOffset_(absolute_ ? 0 : roundUp(size.coefficients * sizeof(float))) {}

void MapLayout::pack(Affine& affine, Block block, Target message) const {
  if (!absolute_) affine.packCoefficients(block, coefficients(message.data));
  affine.packState(block, state(message));
}

}  // namespace seqpar
