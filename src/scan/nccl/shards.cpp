// TRANSPOSED and HIER over NCCL: inside a group of neighboring positions, each position combines one shard of all maps;
// with several groups, shards are sent from group to group.
#include "scan/cut.h"
#include "scan/nccl/algorithms.h"

namespace seqpar {
namespace {

/// A group and its neighboring groups.
struct Neighborhood {
  int first = 0, end = 0;
  int previousFirst = -1;  ///< first position of the previous group; -1: none
  bool last = true;        ///< no group after this one
};

Neighborhood nodeOf(const ScanOrder& order) {
  const auto& nodes = order.nodes;
  const auto node = [&](int p) { return nodes[static_cast<std::size_t>(p)]; };
  Neighborhood place{order.position, order.position + 1, -1, true};
  while (place.first > 0 && node(place.first - 1) == node(order.position)) --place.first;
  while (place.end < order.size() && node(place.end) == node(order.position)) ++place.end;
  place.last = place.end == order.size();
  if (place.first > 0) {
    place.previousFirst = place.first - 1;
    while (place.previousFirst > 0 && node(place.previousFirst - 1) == node(place.first - 1)) --place.previousFirst;
  }
  return place;
}

class ShardScan {
 public:
  ShardScan(const NcclScanSetting& setting, const Neighborhood& place, std::size_t rails)
      : setting_(setting),
        affine_(setting.affine),
        place_(place),
        shards_(affine_.split(affine_.whole(), rails)),
        local_(static_cast<std::size_t>(setting.position() - place.first)) {
    if (owner()) slots_ = affine_.takeSlots(shard(), given(), 64);
  }

  /// Sends every position's map of each shard to the shard's owner.
  void scatter() {
    NcclTransfers step;
    if (setting_.position() < place_.first + given()) {
      for (std::size_t q = 0; q < shards_.size(); ++q) {
        for (std::size_t part = 0; part < NcclAffine::partsAt(setting_.position()); ++part) {
          step.sends.push_back({ownerRank(q), affine_.own(shards_[q], part), affine_.partBytes(shards_[q], part)});
        }
      }
    }
    for (int map = 0; owner() && map < given(); ++map) {
      const int p = place_.first + map;
      for (std::size_t part = 0; part < NcclAffine::partsAt(p); ++part) {
        step.receives.push_back({setting_.rankAt(p), slots_.at(map, part), affine_.partBytes(shard(), part)});
      }
    }
    step.run(setting_);
  }

  /// Sends the owner's shard from group to group, in `blocks` blocks. Returns the shard before this group; null at the
  /// first group.
  const std::byte* chain(std::size_t blocks) {
    const bool first = place_.previousFirst < 0;
    if (!owner() || (first && place_.last)) return nullptr;
    ComposedMap map;
    if (!place_.last) map = affine_.compose(slots_, given(), first);
    std::byte* const x = first ? nullptr : affine_.takeStates(shard());
    std::byte* const next = place_.last ? nullptr : affine_.takeStates(shard());
    const auto parts = affine_.split(shard(), blocks);
    const auto offset = [&](Block block) { return affine_.stateBytes({shard().begin, block.begin}); };
    for (std::size_t k = 0; k <= parts.size(); ++k) {
      NcclTransfers step;
      if (k > 0 && !place_.last) {
        const int to = setting_.rankAt(place_.end + static_cast<int>(local_));
        step.sends.push_back({to, next + offset(parts[k - 1]), affine_.stateBytes(parts[k - 1])});
      }
      if (k < parts.size() && !first) {
        const int from = setting_.rankAt(place_.previousFirst + static_cast<int>(local_));
        step.receives.push_back({from, x + offset(parts[k]), affine_.stateBytes(parts[k])});
      }
      step.run(setting_);
      if (k == parts.size() || place_.last) continue;
      affine_.apply(map, parts[k], first ? nullptr : x + offset(parts[k]), next + offset(parts[k]));
    }
    return x;
  }

  /// Sends every position its x of all shards, and hops.
  void distribute(const std::byte* front) {
    NcclTransfers step;
    if (owner()) {
      const int maps = place_.end - place_.first - 1;
      const std::byte* const states = affine_.between(slots_, maps, front);
      const std::size_t bytes = affine_.stateBytes(shard());
      for (int p = place_.first; p < place_.end; ++p) {
        if (p > 0) step.sends.push_back({setting_.rankAt(p), states + bytes * std::size_t(p - place_.first), bytes});
      }
    }
    std::byte* x = nullptr;
    if (setting_.position() > 0) {
      x = affine_.takeStates(affine_.whole());
      for (std::size_t q = 0; q < shards_.size(); ++q) {
        std::byte* const place = x + affine_.stateBytes({0, shards_[q].begin});
        step.receives.push_back({ownerRank(q), place, affine_.stateBytes(shards_[q])});
      }
    }
    step.run(setting_);
    affine_.hop(affine_.whole(), x, setting_.wireType, nullptr);
  }

 private:
  bool owner() const { return local_ < shards_.size(); }
  Block shard() const { return shards_[local_]; }
  int ownerRank(std::size_t q) const { return setting_.rankAt(place_.first + static_cast<int>(q)); }
  /// Number of the group's maps that are needed: no position follows the very last one.
  int given() const { return place_.end - place_.first - (place_.last ? 1 : 0); }

  const NcclScanSetting& setting_;
  NcclAffine& affine_;
  Neighborhood place_;
  std::vector<Block> shards_;
  std::size_t local_;  ///< this position's index in the group
  MapSlots slots_;
};

void scanShards(const NcclScanSetting& setting, const Neighborhood& place, std::size_t rails, std::size_t blocks) {
  ShardScan scan(setting, place, rails);
  scan.scatter();
  scan.distribute(scan.chain(blocks));
}

}  // namespace

namespace transposed {

void ncclRun(const NcclScanSetting& setting, std::size_t) {
  scanShards(setting, {0, setting.size(), -1, true}, static_cast<std::size_t>(setting.size()), 1);
}

}  // namespace transposed

namespace hier {

void ncclRun(const NcclScanSetting& setting, std::size_t blocks) {
  scanShards(setting, nodeOf(setting.order), static_cast<std::size_t>(hierRails(setting.order)), blocks);
}

}  // namespace hier
}  // namespace seqpar
