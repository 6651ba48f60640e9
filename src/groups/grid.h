// Ranks as a grid of parallel dimensions: the arithmetic of seqpar/groups.h.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "seqpar/groups.h"

namespace seqpar {

using Coordinates = std::array<int, SEQPAR_DIMS>;

class Grid {
 public:
  /// Throws InvalidArgument in the name of `call` if the fields are not valid.
  Grid(const char* call, const seqparGrid_t& given);

  int ranks() const { return ranks_; }
  int extent(int dim) const { return extent_[static_cast<size_t>(dim)]; }
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;

  /// The ranks that differ from `rank` only in the dimensions `dims` (SEQPAR_DIM() bits), ascending.
  std::vector<int> group(unsigned dims, int rank) const;
  /// A color for communicator splits: the lowest rank of the group. Equal within a group, different between groups.
  int color(unsigned dims, int rank) const;

  /// "tensor 2 x ulysses 1 x ring 4 x data 1 x pipeline 1 = 8 ranks"
  std::string text() const;

 private:
  Coordinates extent_{}, order_{};
  Coordinates stride_{};  ///< ranks between neighbors in a dimension
  int ranks_ = 1;
};

}  // namespace seqpar
