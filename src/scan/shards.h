// A block among neighboring positions, each of which combines one shard of it: what TRANSPOSED and HIER do inside a
// group.
#pragma once

#include <optional>
#include <vector>

#include "scan/algorithms.h"
#include "scan/fold.h"

namespace seqpar {

/// The positions [first, end).
struct Group {
  int first = 0, end = 0;
  int size() const { return end - first; }
};

/// One block's scan inside a group: scatter(), then on owners distribute(), then take(). Shard q belongs to the q-th
/// position of the group.
class ShardScan {
 public:
  ShardScan(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, Group group,
            std::vector<Block> shards);

  /// True if this position has a shard.
  bool owner() const { return local_ < shards_.size(); }
  /// This position's shard.
  Block shard() const { return shards_[local_]; }

  /// Sends this position's map of every shard to the shard's owner. At position 0 that includes the hop of these
  /// shards.
  void scatter();

  /// The owner's shard of the map of the whole group. The messages that it is made of stay held for distribute().
  Fold groupMap();

  /// Gives every position of the group its x of the owner's shard, this one included. `x` is the state in front of the
  /// group; none where the group begins at position 0.
  void distribute(std::optional<Fold> x);

  /// Hops the shards of the other owners, as they come.
  void take();

 private:
  MapLayout layoutOf(int position, Block block) const;
  const std::byte* map(int position);
  void releaseMap(int position);

  Affine& affine_;
  const ScanProblem& problem_;
  const ScanOrder& order_;
  Mailbox& mail_;
  Group group_;
  std::vector<Block> shards_;
  size_t local_;                        ///< this position's number in the group
  std::vector<const std::byte*> maps_;  ///< [group_.size()] messages that are held
};

}  // namespace seqpar
