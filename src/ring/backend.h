// Backends move a ring's tensors: a backend owns the buffers, because its transport must be able to access them. The
// ring itself only knows sources and destinations.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ring/schedule.h"

namespace seqpar {

/// A ring's buffers. `home` and `scratch` are the caller's, or empty.
struct RingBuffers {
  std::vector<size_t> mostBytes;                 ///< per tensor, the largest size of any rank
  int sets = 1;                                  ///< set 0 is home
  std::vector<std::byte*> home;                  ///< [tensor]
  std::vector<std::vector<std::byte*>> scratch;  ///< [set - 1][tensor]
  bool keepHome = false;                         ///< set 0 receives no data
  bool everybody = false;                        ///< all ranks of the communicator are in the ring
};

/// A part of a tensor in one of the buffers.
struct RingPart {
  int set = 0;
  size_t tensor = 0;
  size_t offset = 0, bytes = 0;
  const std::byte* source = nullptr;  ///< address of sent data that is not in that buffer
};

/// Parts to send to one rank and parts to receive from another. The peers' lists have the same lengths.
struct RingTransfer {
  int to = 0, from = 0;  ///< ranks of the communicator, except this one
  std::vector<RingPart> out, in;
  int receiveSet = 0;  ///< destination set of the parts, here and at `to`; their offset is the offset in the tensor
  bool own = false;    ///< `out` consists of this rank's own tensors, at home
};

/// The backend and options of a ring, the same on all its ranks.
struct RingChoice {
  bool copyEngines = false;
  bool keepHome = false;  ///< set 0 receives no data, although the caller would allow it
  std::string reason;     ///< text
};

/// One transfer step is in progress at a time.
class RingBackend {
 public:
  RingBackend() = default;
  RingBackend(const RingBackend&) = delete;
  RingBackend& operator=(const RingBackend&) = delete;
  /// Waits for posted transfers.
  virtual ~RingBackend() = default;

  virtual const char* name() const = 0;
  /// Null for an empty tensor in the backend's own memory.
  virtual std::byte* buffer(int set, size_t tensor) const = 0;
  /// Starts `transfers`, at most kMostFlows, after all earlier work of `stream`.
  virtual void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) = 0;
  /// Later work of `stream` waits for the last posted transfers; throws, or ends that stream's work, if they failed.
  virtual void wait(const CallerStream& stream) = 0;
  /// The capture that `stream` belongs to, unique in the process; 0: none.
  virtual unsigned long long capture(const CallerStream&) const { return 0; }
};

/// Collective over the ring's ranks; `buffers` without the number of sets.
RingChoice chooseRingBackend(Communicator& comm, const RingBuffers& buffers);

/// Collective over the ring's ranks. Throws InvalidUsage if the communicator's memory has no backend.
std::unique_ptr<RingBackend> makeRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers,
                                             const RingChoice& choice);

/// The backend of host communicators: messages, in a separate thread.
std::unique_ptr<RingBackend> makeHostRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers);

}  // namespace seqpar
