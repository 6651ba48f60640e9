#include "device/nccl_bootstrap.h"

#include "device/cuda.h"
#include "device/nccl_comm.h"

namespace seqpar {
namespace {

class NcclAllgather final : public Allgather {
 public:
  NcclAllgather(void* ncclComm, std::chrono::milliseconds timeout)
      : nccl_(NcclComm::borrow(ncclComm, timeout, health_)) {}

  int device() const { return nccl_->device(); }
  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.empty()) return;
    const CurrentDevice current(device());
    const StreamHandle stream = makeStream();
    const DeviceMemory memory = allocateDevice(all.size(), "the bootstrap through NCCL");
    std::byte* const own = memory.get() + static_cast<std::size_t>(rank()) * mine.size();
    checkCuda(cudaMemcpyAsync(own, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream.get()), "cudaMemcpyAsync");
    nccl_->allGather(own, memory.get(), mine.size(), stream.get());
    nccl_->wait(stream.get());
    checkCuda(cudaMemcpyAsync(all.data(), memory.get(), all.size(), cudaMemcpyDeviceToHost, stream.get()),
              "cudaMemcpyAsync");
    nccl_->wait(stream.get());
  }

 private:
  Health health_;
  std::shared_ptr<NcclComm> nccl_;
};

}  // namespace

std::unique_ptr<Allgather> bootstrapThroughNccl(void* ncclComm, std::chrono::milliseconds timeout, int* device) {
  auto ranks = std::make_unique<NcclAllgather>(ncclComm, timeout);
  *device = ranks->device();
  return ranks;
}

}  // namespace seqpar
