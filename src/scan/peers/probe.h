// Measured figures of the links between peers.
#pragma once

#include "device/cuda.h"
#include "kernels/peers.h"
#include "scan/peers_model.h"

namespace seqpar {

/// A measurement under way. Collective over the peers; leave the choice between the ranks' results to one of them, so
/// that all have the same.
class DeviceProbe {
 public:
  /// Allocates memory for start(), which allocates what is missing: where ranks share a GPU, they meet in between.
  void prepare(const PeerView& view);
  /// Enqueues it on `stream` of the current device; takes well below a millisecond.
  void start(const PeerView& view, cudaStream_t stream);
  /// The two halves of start(), in this order.
  void startTokens(const PeerView& view, cudaStream_t stream);
  void startStream(const PeerView& view, cudaStream_t stream) const;
  /// Once the stream has come past it. RemoteError if it timed out.
  DeviceLink result() const;

 private:
  MappedMemory times_;
  int size_ = 1;
  int channels_ = 0;
};

/// Measures a few times with `probe`, and gives the best of each figure.
DeviceLink measureDeviceLink(DeviceProbe& probe, const PeerView& view, cudaStream_t stream);

}  // namespace seqpar
