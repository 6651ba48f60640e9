#include "mesh/builder.h"

#include <cmath>

#include "base/error.h"

namespace seqpar {

MeshBuilder::MeshBuilder(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs)
    : shape_(shape),
      costs_(costs),
      missing_(shape.ranks()),
      missingInRow_(static_cast<size_t>(shape.a), shape.b),
      missingInColumn_(static_cast<size_t>(shape.b), shape.a),
      done_(static_cast<size_t>(shape.ranks()), false) {
  schedule_.pass = pass;
  schedule_.shape = shape;
}

void MeshBuilder::receiveAll(seqparMeshOperation_t ofQ, const NextTile& next) {
  while (rows_ < shape_.a || columns_ < shape_.b) {
    // A new Q block unlocks a tile for each received column, a new KV block one for each received row. Products instead
    // of quotients: a cost may be 0.
    const bool queries =
        columns_ == shape_.b || (rows_ < shape_.a && columns_ * cost(seqparMeshRecvKv) > rows_ * cost(ofQ));
    if (queries) {
      move(ofQ, rows_, next);
      ++rows_;
    } else {
      move(seqparMeshRecvKv, columns_, next);
      ++columns_;
    }
  }
}

void MeshBuilder::move(seqparMeshOperation_t operation, int index, const NextTile& next) {
  schedule_.steps.push_back({operation, index, static_cast<int>(schedule_.tiles.size()), 0});
  const int most = tilesToHide(cost(operation));
  for (int count = 0; count < most; ++count) {
    const auto tile = next();
    if (!tile) return;
    add(*tile);
  }
}

void MeshBuilder::compute(const NextTile& next) {
  const auto tile = next();
  if (!tile) fail(seqparInternalError, "a mesh schedule has nothing left to compute and is not finished");
  if (schedule_.steps.empty() || schedule_.steps.back().operation != seqparMeshCompute) {
    schedule_.steps.push_back({seqparMeshCompute, 0, static_cast<int>(schedule_.tiles.size()), 0});
  }
  add(*tile);
}

int MeshBuilder::tilesToHide(double seconds) const {
  // With slack below the costs' precision: a tile that only rounding asks for hides nothing.
  constexpr double kSlack = 1e-9;
  if (costs_.tile <= 0) return shape_.ranks();
  return static_cast<int>(std::min(std::ceil(seconds / costs_.tile - kSlack), static_cast<double>(shape_.ranks())));
}

void MeshBuilder::add(seqparMeshTile_t tile) {
  done_[place(tile.q, tile.kv)] = true;
  --missingInRow_[static_cast<size_t>(tile.q)];
  --missingInColumn_[static_cast<size_t>(tile.kv)];
  --missing_;
  schedule_.tiles.push_back(tile);
  ++schedule_.steps.back().tileCount;
}

}  // namespace seqpar
