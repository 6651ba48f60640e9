// All-Scan as an MPI user would write it: the peers of the library's algorithms. fp32 only.
#pragma once

#include <mpi.h>

#include <vector>

#include "affine_map.h"
#include "common/buffer.h"

namespace seqpar::perf {

/// The ranks in scan order, as an MPI communicator.
class MpiOrder {
 public:
  explicit MpiOrder(seqparDirection_t direction);
  ~MpiOrder() { MPI_Comm_free(&comm_); }
  MpiOrder(const MpiOrder&) = delete;
  MpiOrder& operator=(const MpiOrder&) = delete;
  MPI_Comm comm() const { return comm_; }
  int position() const;
  int size() const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// MPI_Exscan (or MPI_Scan, if only the total is requested) with a user operation. An element is one contiguous block
/// of memory with the map's shape, A and S, so nothing needs packing.
class MpiExscan {
 public:
  MpiExscan(const AffineMap& map, seqparDirection_t direction, seqparComm_t comm);
  ~MpiExscan();
  MpiExscan(const MpiExscan&) = delete;
  MpiExscan& operator=(const MpiExscan&) = delete;

  /// The caller writes A and S here, and reads the prefix. In place, the prefix overwrites S.
  float* transition();
  float* state();
  /// The total without wantPrefix.
  float* result(bool inPlace);
  /// One scan. `total` receives the inclusive result if both outputs are requested, else it is null.
  void run(bool inPlace, bool wantPrefix, float* total);

 private:
  AffineMap map_;
  MpiOrder order_;
  Buffer send_, receive_;
  MPI_Datatype element_ = MPI_DATATYPE_NULL;
  MPI_Op compose_ = MPI_OP_NULL;
};

/// A chain of messages: all receives are posted first, and each block is sent on once it is combined. With one block:
/// receive, combine, send.
class MpiChain {
 public:
  MpiChain(const AffineMap& map, seqparDirection_t direction, seqparComm_t comm);

  /// One scan in `blocks` blocks. `prefix` may be `state`; `total` may be null, or `state` if `prefix` is null.
  void run(const float* a, const float* state, float* prefix, float* total, size_t blocks);

 private:
  AffineMap map_;
  MpiOrder order_;
  Buffer incoming_, outgoing_;
  std::vector<MPI_Request> receives_, sends_;
};

}  // namespace seqpar::perf
