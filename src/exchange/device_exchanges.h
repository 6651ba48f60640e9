// Exchanges on GPUs. Two backends, which differ in how payloads travel: byte FIFOs between peers (peer_exchanges.cpp),
// and NCCL between ranks without access to each other's memory (nccl_exchanges.cpp).
#pragma once

#include <cstddef>
#include <span>

#include "device/group.h"
#include "exchange/backend.h"

namespace seqpar {

class DeviceExchanges : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const final;
  void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const final;
  void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
              const CallerStream& stream) const final;
  void reduceLse(Communicator& comm, const char* call, LseReduction reduction, const CallerStream& stream) const final;
  void mergeLse(Communicator& comm, const char* call, const LseMerge& merge, const CallerStream& stream) const final;

  // All functions below are called from DeviceGroup::enqueue(). Buffers are in memory that the device can address; send
  // and receive buffers do not overlap.

  virtual const char* engine() const = 0;  ///< "kernels" or "NCCL"
  /// Whether kernels and copy engines reach the memory of all ranks.
  virtual bool mapsAll() const = 0;

  /// Enqueues one rank's part of an exchange. Routes of up to 256 regions may be captured into a graph; InvalidUsage
  /// for longer routes during a capture.
  virtual void move(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sends,
                    std::span<std::byte* const> receives, DeviceStream stream) const = 0;
  /// The same for a flow.
  virtual void moveFlow(DeviceGroup& group, const Flow& flow, DeviceStream stream) const = 0;

  /// A reduction with one sum.
  struct SingleSum {
    std::span<const Transfer> sends;
    const Sum& sum;        ///< its terms are everything that this rank receives, and `own`
    const std::byte* own;  ///< this rank's term, null unless it is one run
    int ctas;              ///< Route::ctas
  };
  /// A reduction with one sum in `buffer`, as one kernel. False: nothing was enqueued, since this rank cannot use the
  /// kernel; other ranks choose independently.
  virtual bool recvReduce(DeviceGroup&, const SingleSum&, std::span<const std::byte* const> /*sendBuffers*/,
                          std::byte* /*buffer*/, seqparDataType_t, DeviceStream) const {
    return false;
  }
  /// Whether a payload of several regions needs no additional copy.
  virtual bool joinsRegions() const { return false; }
  /// A merge as one kernel, which reads rowCount. False: nothing was enqueued, on all ranks.
  virtual bool mergeInKernel(DeviceGroup&, const LseMerge&, DeviceStream) const { return false; }
};

/// The backend of a communicator's GPUs.
const DeviceExchanges& exchangesOf(const DeviceGroup& group);

const DeviceExchanges& peerExchanges();
const DeviceExchanges& ncclExchanges();  ///< in builds with NCCL

}  // namespace seqpar
