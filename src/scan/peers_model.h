// What the element-wise All-Scan should cost between GPUs that reach each other by load and store. The algorithms'
// formulas are in their files.
#pragma once

#include <vector>

#include "scan/affine/affine.h"

namespace seqpar {

/// The links between peers, all alike.
struct DeviceLink {
  double alpha = 0;           ///< seconds from a store to the peer's having seen it
  double bytesPerSecond = 0;  ///< of the stores to one peer; 0: unknown, as where there is one peer
};

/// What the formulas are given. Seconds and bytes.
struct PeerModel {
  // Seconds that do not depend on the links, and rates, fitted to measurements on H200.
  static constexpr double kCall = 1.8e-6;        // a kernel, its positions, and its last stores
  static constexpr double kGeneral = 2.0e-6;     // what a program for all vecs takes beside one for fast vecs
  static constexpr double kHop = 0.1e-6;         // what a hop takes beside alpha
  static constexpr double kPeer = 0.25e-6;       // another peer that every position sends to and receives from
  static constexpr double kFold = 0.55e-6;       // waiting for several peers
  static constexpr double kShard = 0.8e-6;       // the second hop: sharing out what was scanned
  static constexpr double kStep = 1.0e-6;        // another row: a barrier, and the wait for what it reads
  static constexpr double kPieceBytes = 65536;   // of LASP1, a channel
  static constexpr double kStreamRate = 1.5e12;  // bytes a second of all threads that hop packets
  static constexpr double kShardRate = 0.25e12;  // and of those that scatter, scan and take

  double ranks = 1;  // P
  double channels = 1;
  double state = 0;  // m: bytes of a state on the wire
  double map = 0;    // bytes of a state with its factors
  double alpha = 0;  // latency of a hop
  double perByte = 0;
  bool fast = false;    // vecs may be
  bool oneRow = false;  // of fast vecs
  double moreRows = 0;  // than one
  double threads = 1;   // the share of all threads that channels have
  double stream = 0;    // a state through a link and its threads

  double hops() const { return ranks - 1; }
};

/// An algorithm's time in seconds, less PeerModel::kCall.
using PeerSeconds = double(const PeerModel& model);

/// All algorithms with their predicted time, fastest first; what cannot be done has infinite time and comes last. The
/// same on all ranks for the same arguments. `channels`: PeerView::channels.
std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int channels);

}  // namespace seqpar
