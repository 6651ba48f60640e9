// Memory that ranks of one host map from each other: anonymous files, which exist as long as a process has them open or
// mapped.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/allgather.h"
#include "transport/segment.h"

namespace seqpar {

class SharedMemory {
 public:
  /// Collective over `control`: allocates this rank's segment, zeroed, and maps the segments of the ranks r with
  /// candidates[r]. candidates[own rank] is false; a rank without candidates participates and allocates nothing.
  SharedMemory(Allgather& control, const std::vector<bool>& candidates);

  /// This rank's segment; null if it has no candidates.
  std::byte* mine() const { return mine_.bytes.data(); }
  /// The segment of `rank`; null if it could not be mapped.
  std::byte* of(int rank) const { return peers_[static_cast<size_t>(rank)].memory.bytes.data(); }
  /// The reason that it could not be mapped, as text.
  const std::string& whyNot(int rank) const { return peers_[static_cast<size_t>(rank)].whyNot; }

 private:
  struct Card;
  /// A file descriptor, closed on destruction.
  struct File {
    File() = default;
    explicit File(int opened) : descriptor(opened) {}
    File(File&& other) noexcept : descriptor(std::exchange(other.descriptor, -1)) {}
    File& operator=(File&& other) noexcept {
      std::swap(descriptor, other.descriptor);
      return *this;
    }
    ~File();
    int descriptor = -1;
  };
  /// A mapping of a file, unmapped on destruction.
  struct Mapping {
    Mapping() = default;
    /// Throws SystemError.
    Mapping(const File& file, size_t size);
    Mapping(Mapping&& other) noexcept : bytes(std::exchange(other.bytes, {})) {}
    Mapping& operator=(Mapping&& other) noexcept {
      std::swap(bytes, other.bytes);
      return *this;
    }
    ~Mapping();
    std::span<std::byte> bytes;
  };
  struct Peer {
    Mapping memory;
    std::string whyNot;
  };

  Card allocate(size_t bytes);
  Mapping map(const Card& card) const;

  File file_;  ///< of mine_; the peers open it
  Mapping mine_;
  std::vector<Peer> peers_;
};

}  // namespace seqpar
