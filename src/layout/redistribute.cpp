#include "layout/redistribute.h"

#include "exchange/walk.h"
#include "layout/overlap.h"

namespace seqpar {
namespace {

/// The sending or the receiving side of an overlap.
struct Side {
  int64_t Overlap::*begin;
  std::array<int64_t, 2> Overlap::*stride;
  int64_t tokens;  ///< in this rank's memory
};

/// Both ranks list the same patterns in the same order, so sends match receives.
void addTransfers(int peer, std::span<const Overlap> patterns, std::span<const RowTensor> tensors, const Side& side,
                  std::vector<Transfer>& out) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto bytes = [&](int64_t count) { return static_cast<size_t>(count) * tensors[t].rowBytes; };
    for (const auto& pattern : patterns) {
      StridedRegion region;
      region.buffer = static_cast<int>(t);
      region.offset = bytes(pattern.*side.begin);
      region.run = bytes(pattern.length);
      region.count = {tensors[t].outer, static_cast<size_t>(pattern.count[0]), static_cast<size_t>(pattern.count[1])};
      region.stride = {bytes(side.tokens), bytes((pattern.*side.stride)[0]), bytes((pattern.*side.stride)[1])};
      if (region.bytes() > 0) out.push_back({peer, simplified(region)});
    }
  }
}

}  // namespace

Route redistributeRoute(const Layout& from, const Layout& to, std::span<const RowTensor> tensors, int rank) {
  const auto had = from.runs(rank);
  const auto gets = to.runs(rank);
  const Side sending{&Overlap::from, &Overlap::fromStride, from.localLength(rank)};
  const Side receiving{&Overlap::to, &Overlap::toStride, to.localLength(rank)};
  Route route;
  for (int step = 0; step < from.ranks(); ++step) {
    // Each rank starts with itself and continues with the ranks after it, so the ranks do not all send to one rank
    // first.
    const int peer = (rank + step) % from.ranks();
    addTransfers(peer, overlaps(had, to.runs(peer)), tensors, sending, route.sends);
    const int source = (rank + from.ranks() - step) % from.ranks();
    addTransfers(source, overlaps(from.runs(source), gets), tensors, receiving, route.receives);
  }
  return route;
}

}  // namespace seqpar
