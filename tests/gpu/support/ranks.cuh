// Ranks without a communicator: windows, state and streams of a few ranks of this process, on the GPUs that it finds,
// several per GPU if necessary. All CTAs of the ranks of a GPU must be resident at once.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <memory>
#include <vector>

#include "device/cuda.h"
#include "kernels/fifo_layout.h"
#include "kernels/peers.h"

namespace seqpar::test {

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;

/// GPUs with peer access, which is enabled here; 0: there is none.
inline int reachableGpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if (a == b) continue;
      int can = 0;
      checkCuda(cudaDeviceCanAccessPeer(&can, a, b), "cudaDeviceCanAccessPeer");
      if (can == 0) return 1;
      const CurrentDevice current(a);
      const cudaError_t result = cudaDeviceEnablePeerAccess(b, 0);
      (void)cudaGetLastError();
      if (result != cudaErrorPeerAccessAlreadyEnabled) checkCuda(result, "cudaDeviceEnablePeerAccess");
    }
  }
  return count;
}

class DeviceRanks {
 public:
  /// Rank r is on GPU r % gpus, of those that are reachable.
  DeviceRanks(int ranks, int channels, int gpus, std::uint64_t timeoutNs) : gpus_(gpus), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const CurrentDevice current(deviceOf(rank));
      Rank& mine = ranks_[static_cast<std::size_t>(rank)];
      const std::size_t rings = FifoLayout::ringsBytes(ranks, channels);
      const std::size_t window = FifoLayout::windowBytes(ranks, channels);
      mine.window = allocateDevice(window, "a test");
      mine.state = allocateDevice(FifoLayout::stateBytes(ranks, channels), "a test");
      mine.words = allocateMapped(128, "a test");
      std::memset(mine.words.get(), 0, 128);
      checkCuda(cudaMemset(mine.window.get(), 0xff, rings), "cudaMemset");
      checkCuda(cudaMemset(mine.window.get() + rings, 0, window - rings), "cudaMemset");
      checkCuda(cudaMemset(mine.state.get(), 0, FifoLayout::stateBytes(ranks, channels)), "cudaMemset");
      cudaStream_t stream = nullptr;
      checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      mine.stream.reset(stream);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      Rank& mine = ranks_[static_cast<std::size_t>(rank)];
      mine.view.self = rank;
      mine.view.size = ranks;
      mine.view.channels = channels;
      for (int peer = 0; peer < ranks; ++peer) {
        mine.view.windows[peer] = ranks_[static_cast<std::size_t>(peer)].window.get();
      }
      mine.view.state = mine.state.get();
      mine.view.waits.abort = reinterpret_cast<std::uint32_t*>(mine.words.get());
      mine.view.waits.timedOut = reinterpret_cast<std::uint32_t*>(mine.words.get() + 64);
      mine.view.waits.timeoutNs = timeoutNs;
    }
    synchronizeDevices();
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  int deviceOf(int rank) const { return rank % gpus_; }
  const PeerView& view(int rank) const { return ranks_[static_cast<std::size_t>(rank)].view; }
  cudaStream_t stream(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stream.get(); }
  /// 0, or 1 + the peer that a kernel of the rank waited for until the timeout.
  std::uint32_t timedOut(int rank) const { return *view(rank).waits.timedOut; }

  void synchronize() const {
    for (int rank = 0; rank < size(); ++rank) checkCuda(cudaStreamSynchronize(stream(rank)), "cudaStreamSynchronize");
  }

 private:
  struct Rank {
    DeviceMemory window, state;
    MappedMemory words;
    StreamHandle stream;
    PeerView view;
  };

  void synchronizeDevices() const {
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      const CurrentDevice current(gpu);
      checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }

  int gpus_;
  std::vector<Rank> ranks_;
};

}  // namespace seqpar::test
