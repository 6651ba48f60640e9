// Builder of a schedule: tracks the blocks that have arrived and the tiles that are done.
#pragma once

#include <functional>
#include <optional>

#include "mesh/schedule.h"

namespace seqpar {

class MeshBuilder {
 public:
  /// Picks the next tile to compute among the ready ones.
  using NextTile = std::function<std::optional<seqparMeshTile_t>()>;

  MeshBuilder(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs);

  int rows() const { return rows_; }        ///< Q blocks that have arrived
  int columns() const { return columns_; }  ///< KV blocks that have arrived
  bool ready(int row, int column) const { return row < rows_ && column < columns_ && !done(row, column); }
  int missingInRow(int row) const { return missingInRow_[static_cast<size_t>(row)]; }
  int missingInColumn(int column) const { return missingInColumn_[static_cast<size_t>(column)]; }
  bool finished() const { return missing_ == 0; }

  /// Receives all blocks; each time the block that unlocks more tiles for its cost.
  void receiveAll(seqparMeshOperation_t ofQ, const NextTile& next);
  /// Appends step `index` of `operation`, overlapped with as many ready tiles as are needed to hide it.
  void move(seqparMeshOperation_t operation, int index, const NextTile& next);
  /// Appends a step that computes one tile and moves nothing.
  void compute(const NextTile& next);

  MeshSchedule take() { return std::move(schedule_); }

 private:
  size_t place(int row, int column) const {
    return static_cast<size_t>(row) * static_cast<size_t>(shape_.b) + static_cast<size_t>(column);
  }
  bool done(int row, int column) const { return done_[place(row, column)]; }
  double cost(seqparMeshOperation_t operation) const { return costs_.step[static_cast<size_t>(operation)]; }
  int tilesToHide(double seconds) const;
  void add(seqparMeshTile_t tile);

  MeshShape shape_;
  MeshCosts costs_;
  int rows_ = 1, columns_ = 1;
  int missing_;
  std::vector<int> missingInRow_, missingInColumn_;
  std::vector<bool> done_;
  MeshSchedule schedule_;
};

}  // namespace seqpar
