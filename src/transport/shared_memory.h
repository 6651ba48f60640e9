// The segments of the ranks of one host, which they map from each other.
#pragma once

#include <string>
#include <vector>

#include "base/shared_file.h"
#include "bootstrap/allgather.h"
#include "transport/segment.h"

namespace seqpar {

class SharedMemory {
 public:
  /// Collective over `control`: allocates this rank's segment, zeroed, and maps the segments of the ranks r with
  /// candidates[r]. candidates[own rank] is false; a rank without candidates participates and allocates nothing.
  SharedMemory(Allgather& control, const std::vector<bool>& candidates);

  /// This rank's segment; null if it has no candidates.
  std::byte* mine() const { return mine_.data(); }
  /// The segment of `rank`; null if it could not be mapped.
  std::byte* of(int rank) const { return peers_[static_cast<size_t>(rank)].memory.data(); }
  /// The reason that it could not be mapped, as text.
  const std::string& whyNot(int rank) const { return peers_[static_cast<size_t>(rank)].whyNot; }

 private:
  struct Peer {
    SharedMapping memory;
    std::string whyNot;
  };

  SharedFileCard allocate(size_t bytes);

  SharedFile file_;  ///< of mine_; the peers open it
  SharedMapping mine_;
  std::vector<Peer> peers_;
};

}  // namespace seqpar
