// Where a plan's work runs: streams, events, memory and the element-wise work between blocks and collectives. One
// implementation for hosts (host.h), one for CUDA (cuda.h). Algorithms see this interface only.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "attn/exec/arena.h"
#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// A call's work goes to two streams: the caller's, and one of the plan's own for what runs beside it. All functions
/// enqueue and return, except on a host with the caller's stream NULL, where main work is done in the call. Nothing is
/// allocated by them, apart from a host queue's entries.
class Exec {
 public:
  virtual ~Exec() = default;

  /// SEQPAR_HOST_DEVICE or the number of a CUDA device.
  virtual int device() const = 0;

  /// Memory for Prepare, of the kind that the plan works on, aligned to Arena::kAlignment. Throws Error.
  virtual std::shared_ptr<void> allocate(size_t bytes, const char* what) = 0;

  /// A call begins: its work goes to `stream`. finish() ends it, also after an exception.
  virtual void begin(void* stream) = 0;
  /// Names the outputs of the call that has begun: if work that returns nothing fails later, they become NaN, so that
  /// what is left in them cannot be taken for a result.
  virtual void guard(std::span<const Tensor> outputs) = 0;
  virtual void finish() = 0;
  /// Waits until all calls so far are done. Throws nothing.
  virtual void drain() noexcept = 0;

  /// What collectives of the public interface get as their stream.
  virtual void* main() const = 0;
  virtual void* side() const = 0;
  /// Later work of side() begins when all earlier work of main() is done.
  virtual void fork() = 0;
  /// Later work of main() begins when all earlier work of side() is done. On a host with stream NULL it waits, and
  /// throws what a collective on side() failed with.
  virtual void join() = 0;

  /// to = from, both of the same shape, converted if their types differ. They do not overlap.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  virtual void copy(const Rows& to, const Rows& from) = 0;
  /// to += from, in fp32, rounded to the type of `to` once.
  virtual void add(const Tensor& to, const Tensor& from) = 0;
  virtual void zero(const Tensor& tensor) = 0;
  virtual void fill(const Rows& rows, float value) = 0;
};

/// The Exec for a communicator; null: host memory on one rank. `threads` is how many this rank may compute with on a
/// host; 0: its share of the processors. Throws Error.
std::unique_ptr<Exec> makeExec(seqparComm_t comm, int threads = 0);

}  // namespace seqpar::attn
