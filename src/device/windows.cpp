#include "device/windows.h"

#include <unistd.h>

#include <algorithm>
#include <random>

namespace seqpar {
namespace {

/// Data that the other ranks need to map a rank's memory. Trivially copyable: it is sent.
struct Export {
  std::uint64_t process = 0;  ///< equal for ranks of one process, different for others
  std::uint64_t address = 0;  ///< in that process
  int device = 0;             ///< in that process's device numbering
  int exported = 0;           ///< 1: the handle is valid
  cudaIpcMemHandle_t handle{};
};

/// Why this device cannot address memory of `peer`, a device of this process; "" if it can.
std::string enablePeer(int device, int peer) {
  if (device == peer) return "";
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, device, peer) != cudaSuccess || can == 0) {
    (void)cudaGetLastError();
    return concat("device ", device, " has no peer access to device ", peer);
  }
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  (void)cudaGetLastError();
  if (result == cudaSuccess || result == cudaErrorPeerAccessAlreadyEnabled) return "";
  return concat("cudaDeviceEnablePeerAccess: ", cudaGetErrorString(result));
}

Export describe(std::byte* memory) {
  Export mine;
  mine.process = processToken();
  mine.address = reinterpret_cast<std::uint64_t>(memory);
  checkCuda(cudaGetDevice(&mine.device), "cudaGetDevice");
  mine.exported = cudaIpcGetMemHandle(&mine.handle, memory) == cudaSuccess ? 1 : 0;
  (void)cudaGetLastError();
  return mine;
}

}  // namespace

std::uint64_t processToken() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return (static_cast<std::uint64_t>(random()) << 32 | random()) ^ static_cast<std::uint64_t>(getpid());
  }();
  return token;
}

std::string MappedWindow::map(Allgather& control, const std::vector<int>& peers) {
  std::vector<Export> all(static_cast<std::size_t>(control.size()));
  const Export mine = describe(memory_.get());
  control.gatherValues(mine, std::span(all));
  std::string reason;
  pointers_.assign(peers.size(), nullptr);
  for (std::size_t peer = 0; peer < peers.size() && reason.empty(); ++peer) {
    const Export& other = all[static_cast<std::size_t>(peers[peer])];
    if (other.process == mine.process) {
      reason = enablePeer(mine.device, other.device);
      // NOLINTNEXTLINE: an address of this process, received over the control plane
      pointers_[peer] = reinterpret_cast<std::byte*>(other.address);
      continue;
    }
    if (other.exported == 0) {
      reason = concat("rank ", peers[peer], " cannot export its memory to other processes");
      break;
    }
    void* opened = nullptr;
    const cudaError_t result = cudaIpcOpenMemHandle(&opened, other.handle, cudaIpcMemLazyEnablePeerAccess);
    (void)cudaGetLastError();
    if (result != cudaSuccess) {
      reason = concat("the memory of rank ", peers[peer], " could not be mapped: ", cudaGetErrorString(result));
      break;
    }
    opened_.push_back(opened);
    pointers_[peer] = static_cast<std::byte*>(opened);
  }
  return reason;
}

void MappedWindow::unmap() noexcept {
  const RelaxedCapture relaxed;
  for (void* pointer : opened_) noteCuda(cudaIpcCloseMemHandle(pointer), "cudaIpcCloseMemHandle");
  opened_.clear();
}

}  // namespace seqpar
