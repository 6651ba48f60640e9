// The GPU side of a communicator: its device, the peers that kernels reach directly, NCCL for all other ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/health.h"
#include "bootstrap/allgather.h"
#include "kernels/peers.h"

namespace seqpar {

class DeviceArena;
class NcclComm;

/// A cudaStream_t; void*, so that headers need no CUDA.
using DeviceStream = void*;

struct DeviceOptions {
  int device = 0;
  std::chrono::milliseconds timeout{300000};  ///< 0: none
  int transport = 0;                          ///< a seqparTransport_t
  int ctas = 128;                             ///< maximum number of CTAs of a collective
  std::vector<int> nodes;                     ///< node of each rank
  std::function<std::string()> behind;        ///< names the ranks with fewer calls (Control::behind); may be null
  void* borrowedNccl = nullptr;               ///< the caller's ncclComm_t over the same ranks; null: create one
};

/// Memory and the function that frees it, which may be called after the group is destroyed.
struct DeviceAllocation {
  void* pointer = nullptr;
  std::function<void()> release;
};

/// What decides a GPU's rates.
struct GpuKind {
  int arch = 0;  ///< compute capability, such as 90 for 9.0
  int sms = 0;
};

/// A block of device memory of every peer, mapped by this rank.
class PeerWindow {
 public:
  PeerWindow() = default;
  PeerWindow(const PeerWindow&) = delete;
  PeerWindow& operator=(const PeerWindow&) = delete;
  virtual ~PeerWindow() = default;

  virtual std::size_t bytes() const = 0;
  /// The memory of peer number `peer` as mapped by this rank, aligned to 4096 bytes.
  virtual std::byte* at(int peer) const = 0;
};

/// One rank's GPU in a communicator. Construction is collective. All work runs on the caller's stream and nothing
/// blocks the host, except drain().
class DeviceGroup {
 public:
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  virtual ~DeviceGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int device() const = 0;
  virtual int smCount() const = 0;      ///< SMs
  virtual GpuKind slowest() const = 0;  ///< the minimum of each value over all ranks
  /// Number of ranks of this process on this device, including this rank. Their streams may be serialized, and a
  /// device-wide synchronization waits for all of them.
  virtual int sharing() const = 0;
  /// True if sharing() is more than one on any rank.
  virtual bool shared() const = 0;
  /// Thread blocks that can be resident at once per rank of a GPU: the minimum over all ranks.
  virtual int sharedBlocks() const = 0;

  /// The ranks that kernels reach by load and store, ascending, including this rank (at least this rank alone).
  virtual const std::vector<int>& peerRanks() const = 0;
  virtual const PeerView& peers() const = 0;
  /// True if every rank is a peer.
  bool direct() const { return static_cast<int>(peerRanks().size()) == size(); }

  /// Collective over the peers, with equal `bytes` on all: device memory of every peer, mapped by every peer,
  /// zero-filled. The memory is freed once all peers have released the window or the group has failed.
  virtual std::unique_ptr<PeerWindow> makeWindow(std::size_t bytes) = 0;

  /// NCCL over all ranks; null if it is not available or not needed.
  virtual NcclComm* nccl() const = 0;

  /// Scratch memory of one operation; enqueue() resets it.
  virtual DeviceArena& arena() = 0;

  virtual const std::string& transport() const = 0;  ///< as text
  virtual const std::string& reason() const = 0;     ///< why no faster transport is used, as text

  /// Runs `launch` with the device current, ordered after all earlier work of this group, on whatever stream; in a
  /// capture, after all earlier work of this group in that capture. Throws the exceptions of launch, and
  /// UnhandledCudaError if a launch failed. True: in a capture.
  virtual bool enqueue(const char* name, DeviceStream stream, const std::function<void()>& launch) = 0;

  /// Whether `stream` is being captured.
  virtual bool inCapture(DeviceStream stream) const = 0;
  /// Throws InvalidUsage if `stream` is being captured and shared(): replayed graphs of such ranks may wait for each
  /// other without end.
  virtual void checkCapture(const char* name, DeviceStream stream) const = 0;

  /// Waits on the host for enqueued work. Returns or throws within the timeout, or soon after a failure.
  virtual void drain() = 0;

  /// Records a failure that a kernel has stored. The watchdog does so every few milliseconds: call it before Health is
  /// read for a program that has waited for a stream. May be called from any thread.
  virtual void notice() = 0;

  /// Unmaps the memory of other ranks, so that they may free it. Call after drain(); no window may be used afterwards.
  virtual void release() noexcept = 0;

  /// Memory of the device, allocated as windows are. Not collective.
  virtual DeviceAllocation allocate(std::size_t bytes) = 0;
};

/// Collective over `control`. Throws InvalidUsage if the library was built without CUDA or the device does not exist.
std::unique_ptr<DeviceGroup> makeDeviceGroup(Allgather& control, const DeviceOptions& options, Health& health);

}  // namespace seqpar
