// A rank's GPU, for sources compiled with and without CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace seqpar::perf {

class Group;

/// Captured work that can be enqueued as a whole.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  virtual ~Graph() = default;
  virtual void launch() = 0;
};

/// A block of every rank's device memory, mapped by all ranks.
class Window {
 public:
  Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  virtual ~Window() = default;
  virtual void* at(int rank) const = 0;
};

/// The performance of a link between two GPUs, measured by the harness's kernels.
struct LinkLimits {
  double alphaUs = 0;    ///< one-way time of a flag
  double bandwidth = 0;  ///< of stores to one neighbor while all ranks store, in bytes per second
};

/// One rank's GPU with the stream of all measured work. Only the rank's thread calls its methods.
class Gpu {
 public:
  Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  virtual ~Gpu() = default;

  virtual std::string name() const = 0;  ///< as text, with its number
  virtual int sharing() const = 0;       ///< maximum number of ranks on any GPU of the run
  virtual void* stream() const = 0;      ///< a cudaStream_t, not ordered with the default stream

  /// Waits for the stream. Throws errors of the communicator or of CUDA about its work.
  virtual void synchronize() = 0;
  /// Enqueues a barrier over all ranks.
  virtual void barrier() = 0;
  /// Collective: the GPU time of the work that `enqueue` enqueues; all ranks start together.
  virtual double elapsedUs(const std::function<void()>& enqueue) = 0;
  /// Collective: the times of `count` calls of `enqueue`, each after a barrier if `apart`.
  virtual std::vector<double> eachUs(int count, bool apart, const std::function<void()>& enqueue) = 0;
  /// Collective: captures the work that `enqueue` enqueues, without running it.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) = 0;

  /// Collective: `bytes` of every rank. Null if the GPUs cannot map each other's memory.
  virtual std::unique_ptr<Window> window(size_t bytes) = 0;
  /// Enqueues a copy by the copy engine, also to a peer's window.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  /// Collective, measured at the first call; zeros if a GPU has several ranks, there is only one rank, or no window.
  virtual LinkLimits limits() = 0;
};

/// The number of GPUs of this host. Throws UsageError with the reason if there is none.
int gpuCount();
/// Bytes in use on the calling thread's GPU, by all processes.
size_t gpuMemoryInUse();
/// Sets the calling thread's current GPU.
void gpuUse(int device);
/// Collective: the GPU of the calling thread, which is also the communicator's, for `group`.
std::unique_ptr<Gpu> makeGpu(Group& group, int device, int sharing);

/// Copies between host and device memory, in either direction; complete on return.
void gpuCopy(void* to, const void* from, size_t bytes);
/// Sets bytes of device memory; complete on return.
void gpuFill(void* at, int byte, size_t bytes);

}  // namespace seqpar::perf
