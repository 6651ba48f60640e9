// What moves a ring's tensors: it owns the buffers, since they must lie where it reaches them, and it knows the
// transport. The ring itself only knows what goes where.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ring/schedule.h"

namespace seqpar {

/// Which buffers a ring has. `home` and `scratch` are the caller's, or empty.
struct RingBuffers {
  std::vector<size_t> mostBytes;                 ///< of each tensor, the largest of any rank
  int sets = 1;                                  ///< set 0 is home
  std::vector<std::byte*> home;                  ///< [tensor]
  std::vector<std::vector<std::byte*>> scratch;  ///< [set - 1][tensor]
  bool keepHome = false;                         ///< nothing arrives in set 0
  bool everybody = false;                        ///< all ranks of the communicator are in the ring
};

/// A part of a tensor in one of the buffers.
struct RingPart {
  int set = 0;
  size_t tensor = 0;
  size_t offset = 0, bytes = 0;
  const std::byte* source = nullptr;  ///< of what is sent: where it lies if not in that buffer
};

/// Parts that go to one rank while others come from another; both lists meet lists of the same lengths.
struct RingTransfer {
  int to = 0, from = 0;  ///< ranks of the communicator, others than this one
  std::vector<RingPart> out, in;
  int receiveSet = 0;  ///< where parts arrive, here and at `to`, at the offset that they have in their tensor here
  bool own = false;    ///< `out` is of this rank's own tensors, at home
};

/// How a ring is to be moved, the same on all its ranks.
struct RingChoice {
  bool copyEngines = false;
  bool keepHome = false;  ///< nothing may arrive in set 0, though the caller would allow it
  std::string reason;     ///< in words
};

/// One transfer step is under way at a time.
class RingBackend {
 public:
  RingBackend() = default;
  RingBackend(const RingBackend&) = delete;
  RingBackend& operator=(const RingBackend&) = delete;
  /// Waits for what was posted.
  virtual ~RingBackend() = default;

  virtual const char* name() const = 0;
  /// Null for an empty tensor in the backend's own memory.
  virtual std::byte* buffer(int set, size_t tensor) const = 0;
  /// Begins `transfers`, at most kMostFlows, once all earlier work of `stream` is done.
  virtual void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) = 0;
  /// Makes later work of `stream` wait for what was posted last; throws, or ends that stream's work, if it failed.
  virtual void wait(const CallerStream& stream) = 0;
  /// The capture that `stream` takes part in, unique in the process; 0: none.
  virtual unsigned long long capture(const CallerStream&) const { return 0; }
};

/// Collective over the ring's ranks; `buffers` without the number of sets.
RingChoice chooseRingBackend(Communicator& comm, const RingBuffers& buffers);

/// Collective over the ring's ranks. Throws InvalidUsage where there is no
/// backend for the communicator's memory.
std::unique_ptr<RingBackend> makeRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers,
                                             const RingChoice& choice);

/// The backend of host communicators: messages, on a thread of its own.
std::unique_ptr<RingBackend> makeHostRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers);

}  // namespace seqpar
