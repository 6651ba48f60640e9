// Cost model of All-Scan on host memory. The algorithms' formulas are in their files.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "plan/link.h"
#include "scan/affine/affine.h"
#include "scan/in_place.h"

namespace seqpar {

/// Quantities that all formulas share. Seconds and bytes.
struct HostTerms {
  // Work of an algorithm's step per byte, relative to a streaming hop (receive, combine, write the result, send on).
  static constexpr double kPack = 0.35;    // write the own state to a message
  static constexpr double kFold = 0.35;    // combine one received state into an accumulator
  static constexpr double kFinish = 0.6;   // the final hop, which sends nothing
  static constexpr double kCopy = 0.5;     // copy a received message
  static constexpr double kPrepend = 0.8;  // prepend a received map to a map (DOUBLING)
  static constexpr double kInPlace = 0.5;  // all of CHAIN, if position 1 reads the state in place
  static constexpr double kSpread = 1.7;   // factor of the work on messages that go to as many ranks as there are

  double ranks = 1;     // P
  double state = 0;     // m: bytes of a state on the wire
  double element = 0;   // bytes of a state with its transition
  double alpha = 0;     // latency of a hop
  double overhead = 0;  // cost of a message
  double perByte = 0;   // streaming hop, all ranks active
  double alone = 0;     // the same with one rank active
  double wave = 0;      // latency of a step of all ranks
  double hops = 0;      // of a chain of all ranks that follow each other
  double stages = 0;    // ranks whose work follows each other in a chain
  double fetch = 0;     // time of a rank for the cache lines of a message between varying ranks; 0 over a network

  /// The last position combines P-1 elements; with all ranks active, the average is half of that.
  double folds(double elements) const { return elements * element * kFold * std::max(alone, perByte / 2); }
  /// A block among `ranks` ranks, one shard each: scatter and distribute. The own shard is not sent.
  double shards(double blocks) const {
    const double others = ranks - 1;
    const double sent = others / ranks * (element * (kPack + kFold) + state * (kPack + kFinish));
    return 2 * wave + blocks * 2 * others * (2 * overhead + fetch) + sent * kSpread * perByte;
  }
};

/// Arguments of the formulas.
struct HostModel {
  HostTerms flat;              ///< an algorithm without hierarchy: in every step some rank crosses the network
  HostTerms node;              ///< inside the largest node
  Link network;                ///< between nodes
  std::span<const int> nodes;  ///< sizes of the nodes in scan order; none if a node's positions are not neighbors
  bool ahead = false;          ///< nodes may multiply transitions before a state arrives
  bool inPlace = false;        ///< position 1 of two reads the state of position 0 in place
};

/// An algorithm's time in seconds; infinity if the backend does not support it.
using HostSeconds = double(const HostModel& model, double blocks);

/// Environment of a scan: the same on all ranks.
struct ScanSetting {
  int positions = 1;
  std::span<const int> nodes;  ///< node of each position
  LinkModel links;
  size_t maxMessage = 0;
  size_t window = 0;
  PairAccess access{};  ///< between two positions
};

/// All algorithms with their best block count (or `blocks`, if not 0) and predicted time, fastest first; unsupported
/// ones have infinite time and are last. Depends only on the arguments, so all ranks choose the same algorithm.
std::vector<seqparScanEstimate_t> estimateScan(const ScanProblem& problem, const ScanSetting& setting, int blocks);

}  // namespace seqpar
