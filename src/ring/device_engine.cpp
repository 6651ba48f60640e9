#include "ring/device_engine.h"

#include "exchange/device_exchange.h"
#include "ring/copy_engine.h"
#include "ring/device_buffers.h"
#include "ring/urgent_stream.h"

namespace seqpar {
namespace {

Route routeOf(const std::vector<RingTransfer>& transfers, const DeviceRingBuffers& buffers) {
  Route route;
  const auto piece = [&](const RingPart& part) {
    return Piece{.buffer = buffers.number(part.set, part.tensor), .offset = part.offset, .run = part.bytes};
  };
  for (const auto& transfer : transfers) {
    for (const auto& part : transfer.out) route.sends.push_back({transfer.to, piece(part)});
    for (const auto& part : transfer.in) route.receives.push_back({transfer.from, piece(part)});
  }
  return route;
}

class DeviceRingEngine : public RingEngine {
 public:
  /// With the device current.
  DeviceRingEngine(std::shared_ptr<Communicator> comm, const RingBuffers& buffers)
      : comm_(std::move(comm)),
        buffers_(buffers),
        stream_(makeUrgentStream()),
        before_(makeEvent()),
        after_(makeEvent()) {}

  ~DeviceRingEngine() override {
    // Buffers must not be freed under a kernel, which ends by itself whatever happens to its peers.
    if (posted_) cudaEventSynchronize(after_.get());
  }

  const char* name() const override {
    return comm_->device()->direct() ? "kernels on a stream of the ring" : "NCCL on a stream of the ring";
  }

  std::byte* buffer(int set, size_t tensor) const override { return buffers_.at(set, tensor); }

  void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) override {
    const CurrentDevice current(comm_->device()->device());
    checkCuda(cudaEventRecord(before_.get(), static_cast<cudaStream_t>(stream.device)), "cudaEventRecord");
    checkCuda(cudaStreamWaitEvent(stream_.get(), before_.get(), 0), "cudaStreamWaitEvent");
    const std::vector<const std::byte*> from(buffers_.all().begin(), buffers_.all().end());
    const Route route = routeOf(transfers, buffers_);
    comm_->enqueue("seqparRingPost", stream_.get(),
                   [&](DeviceGroup& group) { exchangeOnDevice(group, route, from, buffers_.all(), stream_.get()); });
    checkCuda(cudaEventRecord(after_.get(), stream_.get()), "cudaEventRecord");
    posted_ = true;
  }

  void wait(const CallerStream& stream) override {
    const CurrentDevice current(comm_->device()->device());
    checkCuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.device), after_.get(), 0), "cudaStreamWaitEvent");
  }

 private:
  std::shared_ptr<Communicator> comm_;
  DeviceRingBuffers buffers_;
  StreamHandle stream_;
  EventHandle before_, after_;
  bool posted_ = false;
};

}  // namespace

std::unique_ptr<RingEngine> makeDeviceRingEngine(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                                 const RingChoice& choice) {
  const CurrentDevice current(comm->device()->device());
  const auto byKernels = [&](const RingBuffers& given) { return std::make_unique<DeviceRingEngine>(comm, given); };
  if (choice.copyEngines) return makeCopyRingEngine(comm, buffers, byKernels);
  return byKernels(buffers);
}

}  // namespace seqpar
