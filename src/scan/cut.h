// Divides the state into blocks so that an algorithm's messages fit.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "scan/algorithms.h"

namespace seqpar {

/// The number of shards in HIER's blocks: the size of the smallest node. Throws InvalidUsage if the positions of a node
/// are not neighbors.
int hierRails(const ScanOrder& order);

/// Blocks of an algorithm: owned, or those of a prepared scan.
class ScanBlocks {
 public:
  explicit ScanBlocks(std::span<const Block> known) : all_(known) {}
  explicit ScanBlocks(std::vector<Block> cut) : own_(std::move(cut)), all_(own_) {}
  ScanBlocks(const ScanBlocks&) = delete;
  ScanBlocks& operator=(const ScanBlocks&) = delete;
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<Block> own_;
  std::span<const Block> all_;
};

/// The blocks of an algorithm with traffic other than Bytes: at least `blocks`, if the state allows it, and as many as
/// needed to keep messages within maxMessage(), and a rank's messages for one block within window() / 2. All ranks get
/// the same blocks. None if there are no elements. Throws InvalidUsage if the finest blocks do not fit.
std::vector<Block> cutScan(seqparScanAlgorithm_t algorithm, const Affine& affine, const ScanProblem& problem,
                           const ScanOrder& order, const Mailbox& mail, size_t blocks);

/// order.cut if present, otherwise cutScan().
inline ScanBlocks scanBlocks(seqparScanAlgorithm_t algorithm, const Affine& affine, const ScanProblem& problem,
                             const ScanOrder& order, const Mailbox& mail, size_t blocks) {
  if (!order.cut.empty()) return ScanBlocks(order.cut);
  return ScanBlocks(cutScan(algorithm, affine, problem, order, mail, blocks));
}

}  // namespace seqpar
