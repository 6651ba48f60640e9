// All-Scan on the GPUs of a communicator: what it costs there, and which kernels or NCCL steps do it.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// The measured cost model of one device communicator.
class DevicePlan {
 public:
  DevicePlan() = default;
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;
  virtual ~DevicePlan() = default;

  /// All algorithms, fastest first; the same on all ranks. `blocks` 0: the best for each.
  virtual std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const = 0;
  /// For seqparCommQuery(): the links' figures, as far as they were measured.
  virtual LinkModel links() const = 0;
};

/// Collective: measures the links of `comm`, which is on a device and must outlive the plan.
std::unique_ptr<DevicePlan> makeDevicePlan(Communicator& comm);

/// Collective: enqueues `choice` on `stream`. The problem's pointers are to memory that the device can address.
void runScanOnDevice(Communicator& comm, const ScanProblem& problem, const seqparScanEstimate_t& choice,
                     DeviceStream stream);

}  // namespace seqpar
