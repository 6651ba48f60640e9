// All-Scan with a matrix a head, on the GPUs of peers.
#pragma once

#include <span>

#include "device/group.h"
#include "device/peers.h"
#include "scan/affine.h"

namespace seqpar {

/// The most CTAs of a call, each of which fills an SM: two communicators, or two ranks, fit an H100 or H200.
constexpr int kMostMatrixChannels = 64;

/// True if `algorithm` can do the problem's shape among several ranks with so many channels. CHAIN and LASP1 need a
/// panel of 16 columns in a ring: dk up to 752 in fp32 on the wire, and up to 1520 in 16 bits. The others need a whole
/// matrix in shared memory and in the rings of two channels: dk up to 128, or 80 where there is one channel. The same
/// on all ranks.
bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem, int channels);

/// Collective over the peers: launches the scan of `problem`, whose op is MATRIX, on `stream`. order[p] is the number
/// among the peers of the rank at position p. One launch a call, for up to kMatrixHeads heads; more heads are several
/// launches. The device is current. Throws InvalidUsage where deviceMatrixFits() is false.
void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream);

}  // namespace seqpar
