// All-Scan of the states of linear attention by a dedicated kernel, between GPUs that reach each other's memory: it
// composes the maps of segments as it sends them, and the next kernel may start meanwhile. Source: ZeCO (arXiv
// 2507.01004), All-Scan, with parts of heads as blocks.
#pragma once

#include "kernels/attn/linear/args.h"
#include "seqpar/scan_device.h"

namespace seqpar::attn {

/// Number of parts of a head's state: the threads of a CTA hold all elements of a part in registers.
int stateParts(int dk, int dv);

/// One scan. `scan` determines the first rank; it must be created for batch * heads * stateParts() heads with the
/// elements of one part each.
struct StateScan {
  seqparScanDevice_t scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  int dk = 0, dv = 0;
  int width = 1;                   ///< transitionWidth()
  StateMaps maps;                  ///< per segment, or one map of the rank; not read without `segments`
  int segments = 0;                ///< maps per head; 0: neither the next rank nor `outgoing` needs the rank's map
  bool reverse = false;            ///< maps apply from the last to the first
  bool ignoresIncoming = false;    ///< the rank's map is independent of the incoming state
  bool resetsIncoming = false;     ///< the incoming state counts as 0
  const float* initial = nullptr;  ///< [batch][heads][dk][dv]: incoming state of the first rank; NULL: 0
  float* incoming = nullptr;       ///< out: incoming state
  float* outgoing = nullptr;       ///< out: outgoing state; NULL: not written
  bool overlapsNext = false;  ///< without `segments`: the next kernel starts at once and overlaps with this one's waits
};

/// `ctas`: upper limit; 0: one per part. The launch may overlap with the previous kernel. On the first rank and without
/// `segments` it writes `incoming` during that time: neither the previous kernel nor an earlier one that is still
/// running may read it. The next kernel may overlap with this one: on the first rank, or without `segments`, it starts
/// as soon as this kernel no longer depends on another rank or, with `overlapsNext`, at once: then `ctas` must leave
/// SMs free for it. Only in builds with CUDA. Returns a cudaError_t.
int launchStateScan(const StateScan& scan, const Launch& launch);

/// Loads the kernel on the current device, which may wait for running work.
int loadStateScan();

}  // namespace seqpar::attn
