// Cost model of the element-wise All-Scan between GPUs that reach each other by load and store. The algorithms'
// formulas are in their files.
#pragma once

#include <vector>

#include "scan/affine/affine.h"

namespace seqpar {

/// The links between peers, assumed identical.
struct DeviceLink {
  double alpha = 0;           ///< seconds from a store until the peer observes it
  double bytesPerSecond = 0;  ///< of the stores to one peer; 0: unknown, for example with one peer
};

/// Arguments of the formulas. Seconds and bytes.
struct PeerModel {
  // Seconds that do not depend on the links, and rates, fitted to measurements on H200.
  static constexpr double kCall = 1.8e-6;        // a kernel, its positions, and its last stores
  static constexpr double kGeneral = 2.0e-6;     // extra time of a program for all vecs over one for fast vecs
  static constexpr double kHop = 0.1e-6;         // time of a hop in addition to alpha
  static constexpr double kPeer = 0.25e-6;       // each further peer that every position sends to and receives from
  static constexpr double kFold = 0.55e-6;       // waiting for several peers
  static constexpr double kShard = 0.8e-6;       // the second hop: distributing the results
  static constexpr double kStep = 1.0e-6;        // each further row: a barrier, and waiting for its loads
  static constexpr double kChunkBytes = 65536;   // of LASP1, per channel
  static constexpr double kStreamRate = 1.5e12;  // bytes per second of all threads that hop packets
  static constexpr double kShardRate = 0.25e12;  // bytes per second of all threads that scatter, scan and take

  double ranks = 1;  // P
  double channels = 1;
  double state = 0;  // m: bytes of a state on the wire
  double map = 0;    // bytes of a state with its factors
  double alpha = 0;  // latency of a hop
  double perByte = 0;
  bool fast = false;    // vecs may be fast
  bool oneRow = false;  // fast vecs, one row
  double moreRows = 0;  // rows beyond the first
  double threads = 1;   // the channels' share of all threads
  double stream = 0;    // time of a state through a link and its threads

  double hops() const { return ranks - 1; }
};

/// An algorithm's time in seconds, excluding PeerModel::kCall.
using PeerSeconds = double(const PeerModel& model);

/// All algorithms with their predicted time, fastest first; unsupported ones have infinite time and are last. All ranks
/// get the same result for the same arguments. `channels`: PeerView::channels.
std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int channels);

}  // namespace seqpar
