// The GPU side of a communicator: its device, the peers that kernels reach directly, NCCL for all others.
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

/// A cudaStream_t, so that headers need no CUDA.
using DeviceStream = void*;

struct DeviceOptions {
  int device = 0;
  std::chrono::milliseconds timeout{300000};  ///< 0: none
  int transport = 0;                          ///< a seqparTransport_t
  int ctas = 128;                             ///< the most CTAs that a collective may use
  std::vector<int> nodes;                     ///< node of each rank
  std::function<std::string()> behind;        ///< who has enqueued fewer calls, in words (Control::behind); may be null
  void* borrowedNccl = nullptr;               ///< an ncclComm_t of the caller with the same ranks, or null: our own
};

/// Memory with what frees it, which may be called after the group is gone.
struct DeviceAllocation {
  void* pointer = nullptr;
  std::function<void()> release;
};

/// A piece of device memory of every peer, mapped here.
class PeerWindow {
 public:
  PeerWindow() = default;
  PeerWindow(const PeerWindow&) = delete;
  PeerWindow& operator=(const PeerWindow&) = delete;
  virtual ~PeerWindow() = default;

  virtual std::size_t bytes() const = 0;
  /// The memory of the peer with this number, as mapped here, aligned to 4096.
  virtual std::byte* at(int peer) const = 0;
};

/// One rank's GPU in a communicator. Collective to make. All work goes to the caller's stream; nothing here waits.
class DeviceGroup {
 public:
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  virtual ~DeviceGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int device() const = 0;
  virtual int processors() const = 0;  ///< SMs
  /// How many ranks of this one's process have its device too, itself included. Their streams may be served one after
  /// the other, and what waits for the device waits for all of them.
  virtual int sharing() const = 0;
  /// True if that is more than one on any rank.
  virtual bool shared() const = 0;
  /// The thread blocks that there can be at once for each rank of a GPU, the least of all ranks; at most so many fit.
  virtual int sharedBlocks() const = 0;

  /// The peers that kernels reach by load and store: their ranks, ascending, this one included. At least this rank.
  virtual const std::vector<int>& peerRanks() const = 0;
  virtual const PeerView& peers() const = 0;
  /// True if every rank is a peer.
  bool direct() const { return static_cast<int>(peerRanks().size()) == size(); }

  /// Collective over the peers, who give the same number of bytes: device memory of everyone, mapped by everyone,
  /// filled with zeros. Its memory lives until all of them have freed it or the group has failed.
  virtual std::unique_ptr<PeerWindow> makeWindow(std::size_t bytes) = 0;

  /// NCCL over all ranks; null where there is none or none is needed.
  virtual NcclComm* nccl() const = 0;

  /// Memory for what lies between the steps of one operation; enqueue() begins with all of it free.
  virtual DeviceArena& arena() = 0;

  virtual const std::string& transport() const = 0;  ///< in words
  virtual const std::string& reason() const = 0;     ///< why not something faster, in words

  /// Runs `launch` with the device current, after all earlier work of this group in stream order (also when that was
  /// given other streams); in a capture after all earlier work of this group in that capture. Throws what launch
  /// throws, and UnhandledCudaError if a launch failed.
  virtual void enqueue(const char* name, DeviceStream stream, const std::function<void()>& launch) = 0;

  /// Waits on the host for work that was enqueued. Ends within the timeout or soon after a failure.
  virtual void drain() = 0;

  /// Forgets the memory of other ranks, so that they may free it. After drain(), and for good.
  virtual void release() noexcept = 0;

  /// Memory of the device, of the kind that windows are made of. Not collective.
  virtual DeviceAllocation allocate(std::size_t bytes) = 0;
};

/// Collective over `control`. Throws InvalidUsage where the library was built without CUDA or there is no such device.
std::unique_ptr<DeviceGroup> makeDeviceGroup(Allgather& control, const DeviceOptions& options, Health& health);

}  // namespace seqpar
