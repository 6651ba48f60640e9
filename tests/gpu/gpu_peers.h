// Peers in one process: a window and a stream for each rank, on as many GPUs as there are, several ranks on a GPU where
// there are fewer.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda.h"
#include "kernels/fifo_layout.h"
#include "kernels/peers.h"
#include "support/bounds.h"

namespace seqpar::test {

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;

/// GPUs that reach each other's memory; 0: there is none.
inline int reachableGpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      int can = 1;
      if (a != b) checkCuda(cudaDeviceCanAccessPeer(&can, a, b), "cudaDeviceCanAccessPeer");
      if (can == 0) return 1;
      if (a == b) continue;
      checkCuda(cudaSetDevice(a), "cudaSetDevice");
      const cudaError_t result = cudaDeviceEnablePeerAccess(b, 0);
      (void)cudaGetLastError();
      if (result != cudaErrorPeerAccessAlreadyEnabled) checkCuda(result, "cudaDeviceEnablePeerAccess");
    }
  }
  return count;
}

class GpuPeers {
 public:
  GpuPeers(int size, int channels, int gpus, std::uint64_t timeoutNs = patienceNs(2)) : views_(size), gpus_(gpus) {
    words_ = allocateMapped(sizeof(std::uint32_t) * static_cast<std::size_t>(size + 1));
    auto* const words = reinterpret_cast<std::uint32_t*>(words_.get());
    for (int i = 0; i <= size; ++i) words[i] = 0;
    const std::size_t bytes = FifoLayout::windowBytes(size, channels);
    for (int peer = 0; peer < size; ++peer) {
      const CurrentDevice current(deviceOf(peer));
      windows_.push_back(allocateDevice(bytes));
      states_.push_back(allocateDevice(FifoLayout::stateBytes(size, channels)));
      checkCuda(cudaMemset(windows_.back().get(), 0, bytes), "cudaMemset");
      checkCuda(cudaMemset(windows_.back().get(), 0xff, FifoLayout::ringsBytes(size, channels)), "cudaMemset");
      checkCuda(cudaMemset(states_.back().get(), 0, FifoLayout::stateBytes(size, channels)), "cudaMemset");
      cudaStream_t stream = nullptr;
      checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      streams_.emplace_back(stream);
      checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    for (int peer = 0; peer < size; ++peer) {
      PeerView& view = views_[static_cast<std::size_t>(peer)];
      view.self = peer;
      view.size = size;
      view.channels = channels;
      for (int other = 0; other < size; ++other) view.windows[other] = windows_[static_cast<std::size_t>(other)].get();
      view.state = states_[static_cast<std::size_t>(peer)].get();
      view.abort = words;
      view.timedOut = words + 1 + peer;
      view.timeoutNs = timeoutNs;
    }
  }

  int size() const { return static_cast<int>(views_.size()); }
  int deviceOf(int peer) const { return peer * gpus_ / size(); }
  const PeerView& view(int peer) const { return views_[static_cast<std::size_t>(peer)]; }
  cudaStream_t stream(int peer) const { return streams_[static_cast<std::size_t>(peer)].get(); }
  std::uint32_t timedOut(int peer) const { return *views_[static_cast<std::size_t>(peer)].timedOut; }

  void synchronize() const {
    for (int peer = 0; peer < size(); ++peer) checkCuda(cudaStreamSynchronize(stream(peer)), "cudaStreamSynchronize");
  }

 private:
  std::vector<PeerView> views_;
  int gpus_;
  MappedMemory words_;
  std::vector<DeviceMemory> windows_, states_;
  std::vector<StreamHandle> streams_;
};

}  // namespace seqpar::test
