#include "ring/device_backend.h"

#include "exchange/device_exchanges.h"
#include "ring/copy_backend.h"
#include "ring/device_buffers.h"
#include "ring/graph_memory.h"
#include "ring/high_priority_stream.h"

namespace seqpar {
namespace {

/// Sets `from` to the buffers that the regions of the sends refer to.
Route routeOf(const std::vector<RingTransfer>& transfers, const DeviceRingBuffers& buffers,
              std::vector<const std::byte*>& from) {
  Route route;
  from.assign(buffers.all().begin(), buffers.all().end());
  const auto region = [&](const RingPart& part) {
    return StridedRegion{.buffer = buffers.number(part.set, part.tensor), .offset = part.offset, .run = part.bytes};
  };
  const auto elsewhere = [&](const RingPart& part) {
    from.push_back(part.source);
    return StridedRegion{.buffer = static_cast<int>(from.size()) - 1, .run = part.bytes};
  };
  for (const auto& transfer : transfers) {
    for (const auto& part : transfer.out) {
      route.sends.push_back({transfer.to, part.source == nullptr ? region(part) : elsewhere(part)});
    }
    for (const auto& part : transfer.in) route.receives.push_back({transfer.from, region(part)});
  }
  return route;
}

class DeviceRingBackend : public RingBackend {
 public:
  /// With the device current. `memory` contains the buffers, if neither the caller nor this object owns them.
  DeviceRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers, std::shared_ptr<void> memory)
      : comm_(std::move(comm)),
        memory_(std::make_shared<Memory>(buffers, std::move(memory))),
        stream_(comm_->device()->shared() ? StreamHandle() : makeUrgentStream()),
        before_(makeEvent()),
        after_(makeEvent()),
        capturedBefore_(makeEvent()),
        capturedAfter_(makeEvent()) {
    freeOfEndedGraphs();
  }

  ~DeviceRingBackend() override {
    // Buffers must not be freed during a kernel; the kernel ends even if its peers fail. Buffers of graphs remain until
    // the graphs are destroyed.
    const RelaxedCapture relaxed;
    if (posted_) noteCuda(cudaEventSynchronize(after_.get()), "cudaEventSynchronize");
    freeOfEndedGraphs();
  }

  const char* name() const override {
    if (!stream_) return "kernels on the caller's stream";
    return exchangesOf(*comm_->device()).mapsAll() ? "kernels on a stream of the ring" : "NCCL on a stream of the ring";
  }

  std::byte* buffer(int set, size_t tensor) const override { return memory_->buffers.at(set, tensor); }

  unsigned long long capture(const CallerStream& stream) const override {
    return captureOf(static_cast<cudaStream_t>(stream.device)).id;
  }

  void post(const std::vector<RingTransfer>& transfers, const CallerStream& caller) override {
    const CurrentDevice current(comm_->device()->device());
    auto* const stream = static_cast<cudaStream_t>(caller.device);
    const Capture capture = captureOf(stream);
    if (capture && capture.id != kept_) {
      keepForGraph(capture.graph, memory_);
      kept_ = capture.id;
    }
    latest_ = capture ? capturedAfter_.get() : after_.get();
    // If ranks of a process share a GPU, streams beyond the GPU's queues, and branches of graphs, are executed one
    // after the other: a waiting kernel of one rank could block the kernel of the other rank that it waits for. Without
    // a second stream, only the caller's own work can block the kernel.
    if (!stream_) {
      exchange(transfers, stream);
      checkCuda(cudaEventRecord(latest_, stream), "cudaEventRecord");
      posted_ = posted_ || !capture;
      return;
    }
    auto* const before = capture ? capturedBefore_.get() : before_.get();
    checkCuda(cudaEventRecord(before, stream), "cudaEventRecord");
    checkCuda(cudaStreamWaitEvent(stream_.get(), before, 0), "cudaStreamWaitEvent");
    exchange(transfers, stream_.get());
    checkCuda(cudaEventRecord(latest_, stream_.get()), "cudaEventRecord");
    posted_ = posted_ || !capture;
  }

  void wait(const CallerStream& stream) override {
    const CurrentDevice current(comm_->device()->device());
    checkCuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.device), latest_, 0), "cudaStreamWaitEvent");
  }

 private:
  /// Memory that the graphs of captured rounds need.
  struct Memory {
    Memory(const RingBuffers& form, std::shared_ptr<void> around) : under(std::move(around)), buffers(form) {}
    std::shared_ptr<void> under;
    DeviceRingBuffers buffers;
  };

  void exchange(const std::vector<RingTransfer>& transfers, cudaStream_t stream) {
    const auto& buffers = memory_->buffers;
    std::vector<const std::byte*> from;
    const Route route = routeOf(transfers, buffers, from);
    comm_->enqueue("seqparRingPost", stream,
                   [&](DeviceGroup& group) { exchangesOf(group).move(group, route, from, buffers.all(), stream); });
  }

  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Memory> memory_;
  StreamHandle stream_;  ///< none if ranks of this process share a GPU
  EventHandle before_, after_;
  EventHandle capturedBefore_, capturedAfter_;  ///< the host must not wait for captured events
  cudaEvent_t latest_ = nullptr;                ///< recorded after the last transfer
  unsigned long long kept_ = 0;                 ///< id of the capture that retains the memory
  bool posted_ = false;                         ///< outside of captures
};

}  // namespace

std::unique_ptr<RingBackend> makeDeviceRingBackend(const std::shared_ptr<Communicator>& comm,
                                                   const RingBuffers& buffers, const RingChoice& choice) {
  const CurrentDevice current(comm->device()->device());
  const auto byKernels = [&](const RingBuffers& given, std::shared_ptr<void> memory) {
    return std::make_unique<DeviceRingBackend>(comm, given, std::move(memory));
  };
  if (choice.copyEngines) return makeCopyRingBackend(comm, buffers, byKernels);
  return byKernels(buffers, nullptr);
}

}  // namespace seqpar
