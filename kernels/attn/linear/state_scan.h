// All-Scan of the states of linear attention by a kernel of its own, between GPUs that reach each other's memory: the
// maps of segments are put together where they are sent, and the kernel behind it may start meanwhile.
// Source: ZeCO (arXiv 2507.01004), All-Scan, with parts of heads for blocks.
#pragma once

#include "kernels/attn/linear/args.h"
#include "seqpar/scan_device.h"

namespace seqpar::attn {

/// Parts that a head's state is sent in: each thread of a CTA has all of its numbers in registers.
int stateParts(int dk, int dv);

/// One scan. Which rank is the first is the handle's to say, made for batch * heads * stateParts() heads of as many
/// elements as a part has.
struct StateScan {
  seqparScanDevice_t scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  int dk = 0, dv = 0;
  int width = 1;         ///< decayWidth()
  SegmentMaps maps;      ///< of each segment by itself, or one map of the rank; not read without `segments`
  int segments = 0;      ///< maps of a head; 0: the rank's map is not wanted, by the next rank or in `outgoing`
  bool reverse = false;  ///< maps apply from the last to the first
  bool forgets = false;  ///< the rank's map takes nothing of what comes in
  bool resets = false;   ///< what comes in counts as 0
  const float* initial = nullptr;  ///< [batch][heads][dk][dv]: what comes in on the first rank; NULL: 0
  float* incoming = nullptr;       ///< out: what comes in
  float* outgoing = nullptr;       ///< out: what goes out; NULL: not wanted
  bool beside = false;  ///< without `segments`: the kernel behind it starts at once, beside this one's waiting
};

/// `ctas`: at most as many, 0: one a part. The launch may start beside the kernel before it. On the first rank and
/// without `segments` it writes `incoming` meanwhile: neither that kernel nor one before that still runs reads it. The
/// one behind it may start beside it: that of the first rank, or of one without `segments`, does so as soon as nothing
/// here depends on another rank any more, or, `beside`, at once: then `ctas` are few enough to leave it its SMs. Only
/// in builds with CUDA. A cudaError_t.
int launchStateScan(const StateScan& scan, const Launch& launch);

/// Loads the kernel for the current device, which may wait for what runs there.
int loadStateScan();

}  // namespace seqpar::attn
