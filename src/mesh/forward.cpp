#include "mesh/builder.h"

namespace seqpar {

MeshSchedule forwardSchedule(MeshShape shape, const MeshCosts& costs) {
  MeshBuilder builder(seqparMeshForward, shape, costs);
  // In sending order. A rank's own row is never sent, so it is last.
  const auto next = [&]() -> std::optional<seqparMeshTile_t> {
    for (int nth = 1; nth <= shape.a; ++nth) {
      const int row = nth % shape.a;
      for (int column = 0; column < shape.b; ++column) {
        if (builder.ready(row, column)) return seqparMeshTile_t{row, column};
      }
    }
    return std::nullopt;
  };
  builder.receiveAll(seqparMeshRecvQ, next);
  for (int row = 1; row < shape.a; ++row) {
    while (builder.missingInRow(row) > 0) builder.compute(next);
    builder.move(seqparMeshSendO, row, next);
  }
  while (!builder.finished()) builder.compute(next);
  return builder.take();
}

MeshSchedule meshSchedule(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs) {
  return pass == seqparMeshForward ? forwardSchedule(shape, costs) : backwardSchedule(shape, costs);
}

}  // namespace seqpar
