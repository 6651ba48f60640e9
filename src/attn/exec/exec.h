// Where a plan's work runs: streams, events, memory and element-wise work between blocks and collectives. One
// implementation for hosts (host.h), one for CUDA (cuda.h). Algorithms use this interface only.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "attn/exec/arena.h"
#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// A call's work goes to two streams: the caller's, and the plan's side stream for overlapped work. All functions
/// enqueue and return, except on a host with a NULL stream, where main work runs in the call. They allocate nothing,
/// except a host queue's entries.
class Exec {
 public:
  virtual ~Exec() = default;

  /// SEQPAR_HOST_DEVICE or the number of a CUDA device.
  virtual int device() const = 0;

  /// Memory of the plan's kind for Prepare, aligned to Arena::kAlignment. Throws Error.
  virtual std::shared_ptr<void> allocate(size_t bytes, const char* what) = 0;

  /// Starts a call: its work goes to `stream`. finish() ends it, also after an exception.
  virtual void begin(void* stream) = 0;
  /// Orders the current call after earlier ones on other streams, because they use the same memory; the first step of
  /// each call. On hosts the caller orders them.
  virtual void follow() = 0;
  /// Declares the outputs of the current call: if enqueued work fails later, they are filled with NaN, so that they
  /// cannot be mistaken for results.
  virtual void guard(std::span<const Tensor> outputs) = 0;
  virtual void finish() = 0;
  /// After a failure of the current call with a lost communicator: if the call has no stream, waits until none of its
  /// work uses the caller's memory.
  virtual void awaitSideWork() noexcept = 0;
  /// Waits until all calls so far are done. Does not throw.
  virtual void drain() noexcept = 0;

  /// The `stream` arguments for collectives of the public interface.
  virtual void* main() const = 0;
  virtual void* side() const = 0;
  /// False if work of side() runs on the only processor of main(), which then also waits in its place.
  virtual bool overlaps() const { return true; }
  /// Orders later work of side() after all earlier work of main().
  virtual void fork() = 0;
  /// Orders later work of main() after all earlier work of side(). Errors of that work become main()'s: on a host with
  /// a NULL stream, waits and throws the first.
  virtual void join() = 0;

  /// to = from, with equal shapes, converted if their types differ. They do not overlap.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  virtual void copy(const Rows& to, const Rows& from) = 0;
  /// to += from, in fp32, rounded to the type of `to` once.
  virtual void add(const Tensor& to, const Tensor& from) = 0;
  virtual void zero(const Tensor& tensor) = 0;
  virtual void fill(const Rows& rows, float value) = 0;
};

/// The Exec for a communicator; null: host memory on one rank. `threads`: this rank's compute threads on a host; 0: its
/// share of the processors. Throws Error.
std::unique_ptr<Exec> makeExec(seqparComm_t comm, int threads = 0);

}  // namespace seqpar::attn
