// Memory that a ring over copy engines shares with its peers: the receive buffers, and words that report progress.
#pragma once

#include <cstdint>
#include <vector>

#include "device/group.h"
#include "ring/backend.h"

namespace seqpar {

/// One window per rank: words, then all sets that receive tensors.
class CopyWindow {
 public:
  /// Words of each rank. A rank only writes the words with its own index, in the windows of other ranks.
  static constexpr std::size_t kWords = 2 * static_cast<std::size_t>(kMostPeers);
  /// Space for the arrivals of `rank`: the word contains the last transfer that may be sent. Written to the senders.
  static std::size_t roomAt(int rank) { return static_cast<std::size_t>(rank); }
  /// The last transfer that `rank` has copied into the window.
  static std::size_t arrivedFrom(int rank) { return static_cast<std::size_t>(kMostPeers + rank); }

  /// Collective over all ranks of a direct group.
  CopyWindow(DeviceGroup& group, const RingBuffers& buffers);

  /// `buffers`, with memory of the window for buffers that the caller did not provide.
  RingBuffers placed(RingBuffers buffers) const;
  /// Whether a set's tensors are in the window: whether it receives data.
  bool holds(int set) const { return set >= first_; }
  /// Address of a tensor on `rank`, in a set of the window.
  std::byte* tensor(int rank, int set, std::size_t number) const;

  std::byte* word(int rank, std::size_t number) const { return window_->at(rank) + number * kWordStride; }
  static constexpr std::size_t kWordStride = 64;
  static constexpr std::size_t kWordsBytes = kWords * kWordStride;

 private:
  int self_;
  int first_;  ///< set
  std::size_t tensors_;
  std::vector<std::size_t> offsets_;  ///< [set - first][tensor]
  std::unique_ptr<PeerWindow> window_;
};

}  // namespace seqpar
