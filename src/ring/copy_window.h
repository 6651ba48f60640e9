// What a ring over copy engines shares with its peers: the buffers in which tensors arrive, and words by which ranks
// tell each other how far they are.
#pragma once

#include <cstdint>
#include <vector>

#include "device/group.h"
#include "ring/backend.h"

namespace seqpar {

/// One window a rank: words, then all sets in which something arrives.
class CopyWindow {
 public:
  /// Words of each rank. A rank writes only those with its own number, in the windows of others.
  static constexpr std::size_t kWords = 2 * static_cast<std::size_t>(kMostPeers);
  /// Room for the arrivals of `rank`, told to those who send to it: the transfer until which there is.
  static std::size_t roomAt(int rank) { return static_cast<std::size_t>(rank); }
  /// The latest transfer whose tensors `rank` has copied into the window.
  static std::size_t arrivedFrom(int rank) { return static_cast<std::size_t>(kMostPeers + rank); }

  /// Collective over all ranks of a group that is direct.
  CopyWindow(DeviceGroup& group, const RingBuffers& buffers);

  /// `buffers` with memory of the window for what the caller did not bring.
  RingBuffers placed(RingBuffers buffers) const;
  /// Whether a set's tensors are in the window: whether something arrives there.
  bool holds(int set) const { return set >= first_; }
  /// Where a tensor of a set that it holds lies on `rank`.
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
