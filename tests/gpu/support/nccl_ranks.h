// Ranks as threads with a GPU each, over NCCL, with the watching that a communicator does.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"
#include "bounds.h"
#include "common/ranks.h"
#include "device/cuda.h"
#include "device/nccl.h"
#include "device/nccl_comm.h"
#include "device/watchdog.h"
#include "support/device_backend.h"

namespace seqpar::test {

/// Ends the program if it takes longer, on an idle machine: nothing here may hang.
inline void limitSeconds(unsigned seconds) {
  alarm(static_cast<unsigned>(patience(std::chrono::seconds(seconds)).count() / 1000));
}

/// The number of GPUs; ends the program as skipped without two of them or without NCCL.
inline int requireNcclRanks() {
  const int gpus = requireGpus(2);
  const std::string report = ncclReport();
  if (report.rfind("NCCL", 0) == 0) return gpus;
  std::printf("skipped: %s\n", report.c_str());
  std::exit(kSkipped);  // NOLINT: no other thread is running yet
}

/// A rank's objects.
struct NcclRank {
  int rank;
  Allgather& control;
  Health& health;
  std::shared_ptr<NcclComm> nccl;
};

/// Runs body on `ranks` threads, rank r on GPU r, with a new NCCL communicator that is polled, and aborted when it
/// fails. Returns the exceptions' texts.
inline std::string onNcclRanks(int ranks, std::chrono::milliseconds timeout,
                               const std::function<void(NcclRank&)>& body) {
  const auto meeting = makeLocalGroup(ranks, patience(std::chrono::minutes(2)));
  return onThreads(ranks, [&](int rank) {
    expectCuda(cudaSetDevice(rank), "cudaSetDevice");
    Health health;
    Allgather& control = *meeting[static_cast<std::size_t>(rank)];
    NcclRank mine{rank, control, health, NcclComm::create(control, rank, timeout, health)};
    NcclComm& nccl = *mine.nccl;
    const Watchdog watch(
        health, [&nccl] { nccl.poll(); }, [&nccl] { nccl.abort(); });
    body(mine);
    // No rank leaves while others may still have work in flight.
    char here = 0;
    std::vector<char> all(static_cast<std::size_t>(ranks));
    control.gatherValues(here, std::span(all));
  });
}

/// Device memory with host access by copies.
template <typename Value>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count)
      : count_(count), memory_(allocateDevice(count * sizeof(Value) + 1, "a test")) {}
  explicit DeviceArray(const std::vector<Value>& values) : DeviceArray(values.size()) { set(values); }

  Value* data() const { return reinterpret_cast<Value*>(memory_.get()); }
  void set(const std::vector<Value>& values) {
    expectCuda(cudaMemcpy(memory_.get(), values.data(), count_ * sizeof(Value), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<Value> get() const {
    std::vector<Value> values(count_);
    expectCuda(cudaMemcpy(values.data(), memory_.get(), count_ * sizeof(Value), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  std::size_t count_;
  DeviceMemory memory_;
};

}  // namespace seqpar::test
