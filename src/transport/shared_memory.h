// Memory that UCX allocates and that ranks of one host map from each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "transport/segment.h"
#include "transport/ucx.h"

namespace seqpar {

class SharedMemory {
 public:
  /// Collective over `control`: allocates this rank's segment, cleared, and maps those of the ranks r with
  /// candidates[r]. candidates[own rank] is false; a rank without any takes part and allocates nothing.
  SharedMemory(Allgather& control, const std::vector<bool>& candidates);

  /// This rank's segment; null if it has no candidates.
  std::byte* mine() const { return mine_; }
  /// The segment of `rank`; null if it could not be mapped.
  std::byte* of(int rank) const { return peers_[static_cast<size_t>(rank)].memory; }
  /// Why not, in words.
  const std::string& whyNot(int rank) const { return peers_[static_cast<size_t>(rank)].whyNot; }

 private:
  struct Peer {
    UcxKey key;
    std::byte* memory = nullptr;
    std::string whyNot;
  };
  struct Card;

  std::vector<std::byte> allocate(size_t bytes, Card& card);
  void map(Peer& peer, const Card& card, const std::byte* keyAndAddress);

  UcxContext context_;
  UcxMemory segment_;
  UcxWorker worker_;
  std::vector<Peer> peers_;  // after the worker: their keys must go first
  std::byte* mine_ = nullptr;
};

}  // namespace seqpar
