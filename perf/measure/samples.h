// The operations that a machine file is derived from, each timed alone.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "attn/layer.h"
#include "common/nccl.h"
#include "common/session.h"

namespace seqpar::perf {

/// All functions are collective and return us of the slowest rank.
class Samples {
 public:
  /// `quick`: single short loops, for tests.
  Samples(Session& session, bool quick);

  bool quick() const { return quick_; }
  Group& group() { return session_.group; }
  bool onGpu() { return group().gpu() != nullptr; }

  /// Calls that keep all ranks busy, not timed: threads of ranks may start on one processor, and the system moves one
  /// of them only after some milliseconds.
  void spread();
  /// seqparSendRecv() to the next rank and from the previous one.
  double shift(size_t bytes);
  /// All-Scan of DIAG or MATRIX with heads of 128 x 128 that fill `bytes`.
  double scan(int op, int algorithm, size_t bytes);
  /// A step of a ring of one tensor.
  double ring(size_t bytes);
  /// seqparAllGather(); bytes of the whole.
  double gather(size_t bytes);
  /// Attention of a rank's own tokens, bf16 or fp32, heads of 128.
  double softmax(int type, int mask, Pass pass, size_t heads, size_t tokens);
  double linear(int family, int algorithm, int type, Pass pass, size_t heads, size_t tokens);
  /// Copies by memcpy, or by the GPU, within a rank's memory.
  double copy(size_t bytes);
  /// Copies by the copy engine to the next rank; NaN if it maps no memory of that rank.
  double copyToNext(size_t bytes);

  enum class NcclOperation { Shift, PingPong, AllGather };
  /// By NCCL on GPUs, `bytes` of a rank; NaN without NCCL.
  double nccl(NcclOperation operation, size_t bytes);

 private:
  double time(const std::string& what, Work work, bool collective);

  Session& session_;
  bool quick_;
  Settings collectives_, kernels_;
  std::shared_ptr<Nccl> nccl_;
};

}  // namespace seqpar::perf
