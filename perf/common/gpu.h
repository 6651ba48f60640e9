// A rank's GPU, for code that is compiled with and without CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace seqpar::perf {

class Group;

/// Work that was captured once and can be enqueued as a whole.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  virtual ~Graph() = default;
  virtual void launch() = 0;
};

/// A piece of every rank's device memory, mapped by all.
class Window {
 public:
  Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  virtual ~Window() = default;
  virtual void* at(int rank) const = 0;
};

/// What a link between two GPUs does, measured by kernels of our own.
struct LinkLimits {
  double alphaUs = 0;    ///< one way of a flag
  double bandwidth = 0;  ///< of stores to one neighbor while all do so, in bytes a second
};

/// One rank's GPU with the stream of all work that is measured. Its methods belong to the rank's thread.
class Gpu {
 public:
  Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  virtual ~Gpu() = default;

  virtual std::string name() const = 0;  ///< in words, with its number
  virtual int sharing() const = 0;       ///< the most ranks that any GPU of the run has
  virtual void* stream() const = 0;      ///< a cudaStream_t, which does not wait for the default stream

  /// Waits for the stream. Throws what the communicator or CUDA says of the work on it.
  virtual void synchronize() = 0;
  /// Enqueues a barrier over all ranks.
  virtual void barrier() = 0;
  /// Collective: the time, by the GPU, of what `enqueue` enqueues; all ranks begin at once.
  virtual double elapsedUs(const std::function<void()>& enqueue) = 0;
  /// Collective: the times of `count` calls of `enqueue`, each after a barrier if `apart`.
  virtual std::vector<double> eachUs(int count, bool apart, const std::function<void()>& enqueue) = 0;
  /// Collective: what `enqueue` enqueues, instead of doing it.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) = 0;

  /// Collective: `bytes` of every rank. Null where the GPUs cannot map each other's memory.
  virtual std::unique_ptr<Window> window(size_t bytes) = 0;
  /// Enqueues a copy by the copy engine, also to a peer's window.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  /// Collective, measured at the first call; zeros where a GPU has several ranks, or there is one rank or no window.
  virtual LinkLimits limits() = 0;
};

/// The number of GPUs of this host. Throws UsageError in words where none can be used.
int gpuCount();
/// Bytes in use on the calling thread's GPU, by anybody.
size_t gpuMemoryInUse();
/// Makes a GPU the calling thread's.
void gpuUse(int device);
/// Collective: the GPU of the calling thread, which is the communicator's, for `group`.
std::unique_ptr<Gpu> makeGpu(Group& group, int device, int sharing);

/// Copies between host and device memory, in either direction; complete on return.
void gpuCopy(void* to, const void* from, size_t bytes);
/// Sets bytes of device memory; complete on return.
void gpuFill(void* at, int byte, size_t bytes);

}  // namespace seqpar::perf
