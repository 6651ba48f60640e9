#include "groups/grid.h"

#include <algorithm>

#include "base/error.h"

namespace seqpar {
namespace {

constexpr std::array<const char*, SEQPAR_DIMS> kNames{"tensor", "ulysses", "ring", "data", "pipeline"};

}  // namespace

Grid::Grid(const char* call, const seqparGrid_t& given) {
  std::array<bool, SEQPAR_DIMS> seen{};
  for (size_t i = 0; i < SEQPAR_DIMS; ++i) {
    const int dim = given.order[i];
    if (dim < 0 || dim >= SEQPAR_DIMS || seen[static_cast<size_t>(dim)]) {
      fail(seqparInvalidArgument, call, ": grid->order[", i, "] is ", dim, ", expected each of 0 to ", SEQPAR_DIMS - 1,
           " once");
    }
    seen[static_cast<size_t>(dim)] = true;
    order_[i] = dim;
  }
  for (const int dim : order_) {
    const auto d = static_cast<size_t>(dim);
    extent_[d] = given.extent[d];
    stride_[d] = ranks_;
    if (extent_[d] < 1) {
      fail(seqparInvalidArgument, call, ": grid->extent[", dim, "] (", kNames[d], ") is ", extent_[d],
           ", expected 1 or more");
    }
    if (__builtin_mul_overflow(ranks_, extent_[d], &ranks_)) {
      fail(seqparInvalidArgument, call, ": grid->extent[", dim, "] (", kNames[d], ") is ", extent_[d],
           ", which gives more than 2^31 - 1 ranks; expected a product equal to the size of the world");
    }
  }
}

Coordinates Grid::coordinates(int rank) const {
  Coordinates out{};
  for (size_t d = 0; d < SEQPAR_DIMS; ++d) out[d] = rank / stride_[d] % extent_[d];
  return out;
}

int Grid::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (size_t d = 0; d < SEQPAR_DIMS; ++d) rank += coordinates[d] * stride_[d];
  return rank;
}

int Grid::color(unsigned dims, int rank) const {
  Coordinates lowest = coordinates(rank);
  for (int dim = 0; dim < SEQPAR_DIMS; ++dim) {
    if ((dims & SEQPAR_DIM(dim)) != 0) lowest[static_cast<size_t>(dim)] = 0;
  }
  return this->rank(lowest);
}

std::vector<int> Grid::group(unsigned dims, int rank) const {
  std::vector<int> members{color(dims, rank)};
  for (const int dim : order_) {  // from inner to outer keeps them ascending
    if ((dims & SEQPAR_DIM(dim)) == 0) continue;
    const auto d = static_cast<size_t>(dim);
    const size_t inner = members.size();
    for (int c = 1; c < extent_[d]; ++c) {
      for (size_t i = 0; i < inner; ++i) members.push_back(members[i] + c * stride_[d]);
    }
  }
  return members;
}

std::string Grid::text() const {
  std::string out;
  for (const int dim : order_) {
    const auto d = static_cast<size_t>(dim);
    out += concat(out.empty() ? "" : " x ", kNames[d], " ", extent_[d]);
  }
  return concat(out, " = ", ranks_, " ranks");
}

}  // namespace seqpar
