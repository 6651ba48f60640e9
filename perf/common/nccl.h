// NCCL as a peer, for sources compiled with and without it. libnccl.so.2 is opened at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace seqpar::perf {

class Group;

/// One rank of an NCCL communicator. All operations go to the stream of the rank's GPU; sizes are in bytes.
class Nccl {
 public:
  Nccl() = default;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  virtual ~Nccl() = default;

  virtual std::string version() const = 0;  ///< such as "2.28.9"

  virtual void groupStart() = 0;
  virtual void groupEnd() = 0;
  virtual void send(const void* from, size_t bytes, int peer) = 0;
  virtual void receive(void* into, size_t bytes, int peer) = 0;
  virtual void allGather(const void* mine, void* all, size_t bytes) = 0;
  /// Sums of `type`, a seqparDataType_t; each rank receives `count` of them.
  virtual void reduceScatter(const void* all, void* mine, size_t count, int type) = 0;
  virtual void allReduce(const void* from, void* into, size_t count, int type) = 0;

  /// Collective: memory that is registered with the communicator as a symmetric window. Null if this rank's library or
  /// GPU has none. It must be freed before the communicator, by all ranks in the same order.
  virtual std::shared_ptr<void> symmetric(size_t bytes) = 0;
};

/// Collective: over all ranks or, with `members`, over these, which include this rank; other ranks pass other groups.
/// Null, with the reason as text, if some rank cannot use NCCL, or if ranks share a GPU, which NCCL refuses.
std::unique_ptr<Nccl> makeNccl(Group& group, std::string& reason, std::span<const int> members = {});

}  // namespace seqpar::perf
