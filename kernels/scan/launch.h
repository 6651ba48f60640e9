// The kernels of the element-wise All-Scan, one function an algorithm, each in a unit of its own.
#pragma once

#include "device/peers.h"
#include "kernels/scan/task.h"

namespace seqpar {

/// A cudaStream_t.
using ScanStream = void*;

void launchChain(const PeerView& view, const ScanTask& task, ScanStream stream);
void launchOneshot(const PeerView& view, const ScanTask& task, ScanStream stream);
void launchTransposed(const PeerView& view, const ScanTask& task, ScanStream stream);
void launchDoubling(const PeerView& view, const ScanTask& task, ScanStream stream);
void launchLasp1(const PeerView& view, const ScanTask& task, ScanStream stream);
void launchLasp2(const PeerView& view, const ScanTask& task, ScanStream stream);

}  // namespace seqpar
