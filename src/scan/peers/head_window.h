// What kernels that pass heads along themselves need in device memory (seqpar_device.cuh).
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "seqpar/scan_device.h"

namespace seqpar {

/// Owns the memory that a seqparScanDevice_t points to.
class HeadWindow {
 public:
  HeadWindow() = default;
  HeadWindow(const HeadWindow&) = delete;
  HeadWindow& operator=(const HeadWindow&) = delete;
  virtual ~HeadWindow() = default;

  /// For kernels of this rank.
  virtual seqparScanDevice_t view() const = 0;
};

/// Collective over `comm`, which is on a device and whose ranks are all peers, and must outlive the window.
std::unique_ptr<HeadWindow> makeHeadWindow(Communicator& comm, int64_t heads, int64_t elements,
                                           seqparDirection_t direction);

}  // namespace seqpar
