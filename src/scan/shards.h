// A block among neighboring positions. Each combines one shard: TRANSPOSED, and HIER within a group.
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

/// One block's scan inside a group: scatter(), then distribute() on owners, then take(). Shard q belongs to position q
/// of the group.
class ShardScan {
 public:
  ShardScan(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, Group group,
            std::vector<Block> shards);

  /// True if this position has a shard.
  bool owner() const { return local_ < shards_.size(); }
  /// This position's shard.
  Block shard() const { return shards_[local_]; }

  /// Sends this position's map of every shard to the shard's owner. At position 0 this includes the hop of these
  /// shards.
  void scatter();

  /// The owner's shard of the map of the whole group. Its source messages stay held for distribute().
  Fold groupMap();

  /// Applies the maps of the group to `x`, the state before the group: the state after it. Its source messages stay
  /// held for distribute().
  void thenGroup(Fold& x);

  /// Sends every position of the group its x of the owner's shard, including this one. `x` is the state before the
  /// group; none if the group starts at position 0.
  void distribute(std::optional<Fold> x);

  /// Hops the shards of the other owners as their x arrives.
  void take();

 private:
  MapLayout layoutOf(int position, Block block) const;
  /// visit(position, layout, message) for the owner's shard of all maps of the group, in order.
  template <typename Visit>
  void eachMap(const Visit& visit);
  const std::byte* map(int position);
  void releaseMap(int position);

  Affine& affine_;
  const ScanProblem& problem_;
  const ScanOrder& order_;
  Mailbox& mail_;
  Group group_;
  std::vector<Block> shards_;
  size_t local_;                        ///< this position's index in the group
  std::vector<const std::byte*> maps_;  ///< [group_.size()] held messages
};

}  // namespace seqpar
