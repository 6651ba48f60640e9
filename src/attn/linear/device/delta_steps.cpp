// The delta rule's steps on a GPU.
#include "attn/linear/device/check.h"
#include "attn/linear/device/delta_windows.h"
#include "device/upload.h"
#include "kernels/attn/linear/delta/half/memory.h"

namespace seqpar::attn::linear {
namespace {

constexpr size_t kRecords = 264;       // two CTAs for each of 132 SMs
constexpr size_t kHalfRecords = 8448;  // 0.75 GB forward, 1.4 GB backward, with heads of 128

class DeviceSteps final : public DeltaSteps {
 public:
  explicit DeviceSteps(int device) : device_(device) {
    checkCuda(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  }

  void run(delta::Step step, const delta::Task& task, void* stream) override {
    const auto launch = task.half ? delta::half::launch : delta::launch;
    checkLaunch(launch(step, task, stream), "a kernel of the delta rule");
  }
  void transpose(float* to, const float* from, int64_t count, int size, void* stream) override {
    checkLaunch(delta::launchTranspose(to, from, count, size, stream), "a transpose");
  }
  void identity(float* to, int64_t count, int size, void* stream) override {
    checkLaunch(delta::launchIdentity(to, count, size, stream), "an identity");
  }
  int overlappingSms(const delta::Task& task) const override {
    return task.half ? delta::half::overlappingSms(task) : 0;
  }
  bool readsRows(const delta::Task& task) const override { return task.half && delta::half::readsRows(task, device_); }
  void fold(const delta::FoldTask& task, void* stream) override {
    checkLaunch(delta::launchFold(task, stream), "a fold of states");
  }
  int sms() const override { return sms_; }
  void upload(void* to, const void* from, size_t bytes) override { seqpar::upload(to, from, bytes); }

 private:
  const int device_;
  int sms_ = 0;
};

}  // namespace

std::unique_ptr<Passes> makeDeviceDeltaPasses(const Shard& shard, Exec& exec) {
  if (const char* const reason = whyNoDeltaKernel(shard)) {
    fail(seqparInvalidUsage, kDeviceWho, ": no kernel for this: ", reason);
  }
  int major = 0;
  checkCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, exec.device()), "cudaDeviceGetAttribute");
  if (major < 8) {
    fail(seqparInvalidUsage, kDeviceWho, ": no kernel for device ", exec.device(), ", expected sm_80 or newer");
  }
  int shared = 0;
  checkCuda(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, exec.device()),
            "cudaDeviceGetAttribute");
  const bool half = fitsHalf(shard) && shared >= delta::half::mostSharedBytes();
  return std::make_unique<DeltaWindows>(shard, exec, std::make_unique<DeviceSteps>(exec.device()),
                                        half ? kHalfRecords : kRecords, half);
}

}  // namespace seqpar::attn::linear
