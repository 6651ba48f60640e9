// NCCL under a communicator: one rank's connections to all others over any network that NCCL supports. No NCCL types.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/health.h"
#include "bootstrap/allgather.h"

namespace seqpar {

/// Bytes in device memory to send to one peer.
struct NcclSend {
  int peer = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// Space in device memory for bytes from one peer.
struct NcclReceive {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Gathers `bytes` of every rank into receive[size * bytes], in rank order. In place if send == receive + rank * bytes.
struct NcclGather {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t bytes = 0;
};

/// A group of ranks that communicate through NCCL: all ranks of an NCCL communicator, or some of them. Peers are
/// numbered within the group. Operations return once they are enqueued on `stream` (a cudaStream_t), may be captured
/// into a graph, and throw NCCL's errors as Errors. The device must be current. All members call them in equal order;
/// groups that share an NCCL communicator count as one group in this.
class NcclComm {
 public:
  /// Collective over `control`: a new NCCL communicator on `device`, connected to every rank, so that no later call
  /// connects. Throws an equal error on all ranks: InvalidUsage if a rank has no libnccl.so.2, or another version.
  static std::shared_ptr<NcclComm> create(Allgather& control, int device, std::chrono::milliseconds timeout,
                                          Health& health);

  /// Collective over the ranks of the caller's ncclComm_t, which must outlive this object and is neither destroyed nor
  /// aborted by it: a kernel that is stuck in it ends when the caller aborts it. Rank and size are NCCL's.
  static std::shared_ptr<NcclComm> borrow(void* ncclComm, std::chrono::milliseconds timeout, Health& health);

  NcclComm() = default;
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  /// The last group of a communicator that create() returned frees it; its ranks must have no work in flight. Waits for
  /// no rank.
  virtual ~NcclComm() = default;

  /// The ranks `ranks` of this group, including this rank, as a group with a separate failure state; peer i is
  /// ranks[i]. Needs no new connections and is not collective. A failure of NCCL or abort() ends all groups that share
  /// the communicator.
  virtual std::shared_ptr<NcclComm> subset(const std::vector<int>& ranks, Health& health) const = 0;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int device() const = 0;

  /// All sends and receives as one step, so that they cannot deadlock. Every send matches a receive of equal bytes, in
  /// order for each pair of ranks; a rank may send to itself. The memory must not overlap.
  virtual void exchange(std::span<const NcclSend> sends, std::span<const NcclReceive> receives, void* stream) = 0;

  /// True if allGather() is NCCL's: the group is a whole communicator and NCCL_NVLS_ENABLE=0 is set on all ranks, since
  /// NCCL may use NVLink multicast otherwise. Equal on all ranks.
  virtual bool gathersNatively() const = 0;
  /// All parts as one step: NCCL's all-gather, or one exchange().
  virtual void allGather(std::span<const NcclGather> parts, void* stream) = 0;
  void allGather(const void* send, void* receive, std::size_t bytes, void* stream) {
    const NcclGather part{send, receive, bytes};
    allGather(std::span(&part, 1), stream);
  }

  /// send[peer * bytes] to each peer, receive[peer * bytes] from each.
  virtual void allToAll(const void* send, void* receive, std::size_t bytes, void* stream) = 0;

  /// Brackets operations that count as one for the deadline. Brackets nest.
  virtual void begin(void* stream) = 0;
  virtual void end(void* stream) noexcept = 0;

  /// Waits on the host for the work of `stream`. Throws, and aborts, if that takes longer than the timeout or if the
  /// communicator fails.
  virtual void wait(void* stream) = 0;

  /// To be called every few milliseconds by any thread: fails `health` if NCCL reports an error, or if an operation has
  /// been running on the device for longer than the timeout. Calls no CUDA function, so it does not disturb captures.
  virtual void poll() = 0;

  /// Ends all work of NCCL at once, including stuck kernels (except on a borrowed communicator); later operations
  /// throw. Callable from any thread, also while other threads are inside a call.
  virtual void abort() noexcept = 0;
};

/// One bracket as an RAII scope.
class NcclStep {
 public:
  NcclStep(NcclComm& comm, void* stream) : comm_(comm), stream_(stream) { comm_.begin(stream_); }
  NcclStep(const NcclStep&) = delete;
  NcclStep& operator=(const NcclStep&) = delete;
  ~NcclStep() { comm_.end(stream_); }

 private:
  NcclComm& comm_;
  void* stream_;
};

}  // namespace seqpar
