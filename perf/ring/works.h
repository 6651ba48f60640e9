// The measured works of ring_perf: the library's shifts and rings, and the peers for equal tensors.
#pragma once

#include <memory>

#include "common/nccl.h"
#include "common/session.h"
#include "compute.h"
#include "seqpar/ring.h"
#include "tensors.h"

namespace seqpar::perf {

using TensorsPointer = std::shared_ptr<Tensors>;

/// Sufficient sets of buffers for a ring that keeps its home: plain, and double.
constexpr int kPlainSets = 3, kDoubleSets = 5;

/// seqparShift() to the next rank.
Work shiftWork(const TensorsPointer& tensors, void* stream);

/// The library's ring, in the sets of the tensors or in library memory.
class OpenRing {
 public:
  OpenRing(TensorsPointer tensors, size_t inner, bool ownMemory, Session& session);
  OpenRing(const OpenRing&) = delete;
  OpenRing& operator=(const OpenRing&) = delete;
  ~OpenRing() { seqparRingDestroy(ring_); }

  /// nranks - 1 steps, each overlapped with a computation.
  void round(Computation& computation);
  void corrupt() { tensors_->corrupt(); }
  size_t wrong() const;
  seqparRingInfo_t info() const;

 private:
  std::vector<void*> current() const;

  TensorsPointer tensors_;
  Session& session_;
  seqparComm_t comm_;
  seqparRing_t ring_ = nullptr;
};

Work ringWork(const std::shared_ptr<OpenRing>& ring, int steps, long rounds);
/// A round's computations, alone.
Work computeWork(Session& session, int steps, long rounds);

/// `steps` of ncclSend and ncclRecv in a group.
Work ncclWork(const TensorsPointer& tensors, int steps, const std::shared_ptr<Nccl>& nccl);
/// The hardware's limit: the copy engine writes to the next rank, without synchronization. No run() if it is not
/// available.
Work copyWork(const TensorsPointer& tensors, Gpu& gpu);

#ifdef SEQPAR_PERF_MPI
/// `steps` times MPI_Isend and MPI_Irecv, posted before a computation and completed after it.
Work mpiWork(const TensorsPointer& tensors, int steps, long rounds);
/// MPI_Sendrecv, one tensor after the other.
Work sendrecvWork(const TensorsPointer& tensors);
#endif

}  // namespace seqpar::perf
