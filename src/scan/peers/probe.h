// Measured parameters of the links between peers.
#pragma once

#include "device/cuda.h"
#include "kernels/peers.h"
#include "scan/peers_model.h"

namespace seqpar {

/// A measurement in progress. Collective over the peers. Results differ between ranks; let one rank select the final
/// one.
class DeviceProbe {
 public:
  /// Allocates the memory of start(), which otherwise allocates it: ranks that share a GPU synchronize in between.
  void prepare(const PeerView& view);
  /// Enqueues the measurement on `stream` of the current device; it takes much less than a millisecond.
  void start(const PeerView& view, cudaStream_t stream);
  /// The two halves of start(), in this order.
  void startTokens(const PeerView& view, cudaStream_t stream);
  void startStream(const PeerView& view, cudaStream_t stream) const;
  /// Call after the stream has executed it. Throws RemoteError if it timed out.
  DeviceLink result() const;

 private:
  MappedMemory times_;
  int size_ = 1;
  int channels_ = 0;
};

/// Measures a few times with `probe`, and returns the best value of each parameter.
DeviceLink measureDeviceLink(DeviceProbe& probe, const PeerView& view, cudaStream_t stream);

}  // namespace seqpar
