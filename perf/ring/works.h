// What ring_perf measures: the library's shifts and rings, and what others do for the same tensors.
#pragma once

#include <memory>

#include "common/nccl.h"
#include "common/session.h"
#include "compute.h"
#include "seqpar/ring.h"
#include "tensors.h"

namespace seqpar::perf {

using TensorsPointer = std::shared_ptr<Tensors>;

/// Sets of buffers that are enough for a ring that keeps its home: plain, and double.
constexpr int kPlainSets = 3, kDoubleSets = 5;

/// seqparShift() to the next rank.
Work shiftWork(const TensorsPointer& tensors, void* stream);

/// The library's ring, in all sets of the tensors or in memory of its own.
class OpenRing {
 public:
  OpenRing(TensorsPointer tensors, size_t inner, bool ownMemory, Session& session);
  OpenRing(const OpenRing&) = delete;
  OpenRing& operator=(const OpenRing&) = delete;
  ~OpenRing() { seqparRingDestroy(ring_); }

  /// nranks - 1 steps, each beside a computation.
  void round(Computation& computation);
  void spoil() { tensors_->spoil(); }
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
/// As many computations as a round has, alone.
Work computeWork(Session& session, int steps, long rounds);

/// `steps` of ncclSend and ncclRecv in a group.
Work ncclWork(const TensorsPointer& tensors, int steps, const std::shared_ptr<Nccl>& nccl);
/// What the hardware does: the copy engine writes to the next rank, and nobody waits for anybody. No run() where it
/// cannot.
Work copyWork(const TensorsPointer& tensors, Gpu& gpu);

#ifdef SEQPAR_PERF_MPI
/// `steps` of MPI_Isend and MPI_Irecv, each posted before a computation and waited for after it.
Work mpiWork(const TensorsPointer& tensors, int steps, long rounds);
/// MPI_Sendrecv, one tensor after the other.
Work sendrecvWork(const TensorsPointer& tensors);
#endif

}  // namespace seqpar::perf
