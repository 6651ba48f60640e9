// The memory through which linear attention kernels pass states between ranks (kernels/attn/linear/state_scan.h).
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "seqpar/scan_device.h"

namespace seqpar::attn::linear {

class ScanWindows {
 public:
  const seqparScanDevice_t& of(seqparDirection_t direction) const { return *scans_[direction]; }
  /// Maximum CTAs of a launch; 0: no limit.
  int ctas() const { return ctas_; }

 private:
  friend std::optional<ScanWindows> openWindows(seqparComm_t comm, int64_t heads, int64_t elements, bool both);
  struct Destroy {
    void operator()(seqparScanDevice_t* scan) const;
  };
  using Handle = std::unique_ptr<seqparScanDevice_t, Destroy>;

  std::array<Handle, 2> scans_;  // by direction
  int ctas_ = 0;
};

/// Collective. Returns nothing, on all ranks, if they do not reach each other's memory. `both`: directions. Throws
/// Error.
std::optional<ScanWindows> openWindows(seqparComm_t comm, int64_t heads, int64_t elements, bool both);

}  // namespace seqpar::attn::linear
