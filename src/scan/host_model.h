// What All-Scan should cost on host memory. The algorithms' formulas are in their files.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "plan/link.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// Quantities that all formulas share. Seconds and bytes.
struct HostTerms {
  // Work of an algorithm's step in units of a streaming hop (receive, combine, write the result, send on), per byte.
  static constexpr double kPack = 0.35;    // write the own state to a message
  static constexpr double kFold = 0.35;    // combine one received state into an accumulator
  static constexpr double kFinish = 0.6;   // the hop at the end, which sends nothing
  static constexpr double kCopy = 0.5;     // copy a received message aside
  static constexpr double kInPlace = 0.5;  // all of CHAIN, where position 1 reads a state where it lies

  double ranks = 1;     // P
  double state = 0;     // m: bytes of a state on the wire
  double element = 0;   // bytes of a state with its transition
  double alpha = 0;     // latency of a hop
  double overhead = 0;  // cost of a message
  double perByte = 0;   // streaming hop, all ranks at work
  double alone = 0;     // the same with one rank at work
  double wave = 0;      // latency of a step that all ranks take together

  /// The last position combines P-1 elements; all together combine half of that each.
  double folds(double elements) const { return elements * element * kFold * std::max(alone, perByte / 2); }
  /// A block among `ranks` ranks, each of which combines one shard: there and back.
  double shards(double blocks) const {
    return 2 * wave + blocks * 2 * ranks * overhead + element * (kPack + kFold) * perByte +
           state * (kPack + kFinish) * perByte;
  }
};

/// What the formulas are given.
struct HostModel {
  HostTerms flat;              ///< an algorithm without hierarchy: at every step some rank crosses the network
  HostTerms node;              ///< inside the fullest node
  Link network;                ///< between nodes
  std::span<const int> nodes;  ///< sizes of the nodes in scan order; none if a node's positions are not neighbors
  bool inPlace = false;        ///< position 1 of two reads the state of position 0 where it lies
};

/// An algorithm's time in seconds; infinity where it cannot be done.
using HostSeconds = double(const HostModel& model, double blocks);

/// Where a scan runs: the same on all ranks.
struct ScanSetting {
  int positions = 1;
  std::span<const int> nodes;  ///< node of each position
  LinkModel links;
  size_t maxMessage = 0;
  size_t window = 0;
  bool readable = false;  ///< there are two positions, which can read each other's memory
};

/// All algorithms with their best block count (or `blocks`, if not 0) and predicted time, fastest first; what cannot be
/// done has infinite time and comes last. Depends on nothing but its arguments, so that all ranks come to the same
/// choice.
std::vector<seqparScanEstimate_t> estimateScan(const ScanProblem& problem, const ScanSetting& setting, int blocks);

}  // namespace seqpar
