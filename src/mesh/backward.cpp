#include "mesh/builder.h"

namespace seqpar {
namespace {

using Tile = std::optional<seqparMeshTile_t>;

/// The first ready tile by rows, in sending order; a rank's own row is last. Columns likewise.
Tile firstByRows(const MeshBuilder& builder, MeshShape shape) {
  for (int r = 1; r <= shape.a; ++r) {
    for (int c = 1; c <= shape.b; ++c) {
      if (builder.ready(r % shape.a, c % shape.b)) return seqparMeshTile_t{r % shape.a, c % shape.b};
    }
  }
  return std::nullopt;
}

Tile firstByColumns(const MeshBuilder& builder, MeshShape shape) {
  for (int c = 1; c <= shape.b; ++c) {
    for (int r = 1; r <= shape.a; ++r) {
      if (builder.ready(r % shape.a, c % shape.b)) return seqparMeshTile_t{r % shape.a, c % shape.b};
    }
  }
  return std::nullopt;
}

/// The benefit of completing a line: the cost of sending it, which can then start, per missing tile. A rank's own line
/// is never sent.
double gain(int line, double sendCost, int missing) {
  return line == 0 ? 0 : sendCost / missing;
}

}  // namespace

MeshSchedule backwardSchedule(MeshShape shape, const MeshCosts& costs) {
  MeshBuilder builder(seqparMeshBackward, shape, costs);
  const double costDq = costs.step[seqparMeshSendDq];
  const double costDkv = costs.step[seqparMeshSendDkv];
  // The gain rises as a line fills, so a line is finished before another is started.
  const auto next = [&]() -> Tile {
    const Tile byRows = firstByRows(builder, shape);
    if (!byRows) return std::nullopt;
    const Tile byColumns = firstByColumns(builder, shape);
    const double ofRow = gain(byRows->q, costDq, builder.missingInRow(byRows->q));
    const double ofColumn = gain(byColumns->kv, costDkv, builder.missingInColumn(byColumns->kv));
    return ofRow >= ofColumn ? byRows : byColumns;
  };

  builder.receiveAll(seqparMeshRecvOdoq, next);
  int row = 1, column = 1;
  while (row < shape.a || column < shape.b) {
    const bool rowReady = row < shape.a && builder.missingInRow(row) == 0;
    const bool columnReady = column < shape.b && builder.missingInColumn(column) == 0;
    if (rowReady && (costDq >= costDkv || !columnReady)) {
      builder.move(seqparMeshSendDq, row++, next);
    } else if (columnReady) {
      builder.move(seqparMeshSendDkv, column++, next);
    } else {
      builder.compute(next);
    }
  }
  while (!builder.finished()) builder.compute(next);
  return builder.take();
}

}  // namespace seqpar
