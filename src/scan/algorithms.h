// The algorithms of All-Scan, one a file. Each is collective over the mailbox's ranks and leaves prefix and total
// written. The caller begins and ends the mailbox's operation around it.
#pragma once

#include <cstddef>
#include <span>

#include "scan/affine.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Who takes part, in scan order.
struct ScanOrder {
  std::span<const int> ranks;  ///< ranks[p] is the rank at position p
  int position = 0;            ///< this rank's
  std::span<const int> nodes;  ///< nodes[p] is the node at position p
  int size() const { return static_cast<int>(ranks.size()); }
};

/// True if the algorithm can cut the problem so that its messages fit a mailbox with these limits; where not, it fails
/// with InvalidUsage. Looks at shape, operator and wire type only.
bool scanFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem, int positions, size_t maxMessage,
              size_t window);

/// `blocks` is the number of blocks to aim at; it is raised where messages would not fit the mailbox.
void scanChain(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);
void scanOneshot(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);
void scanTransposed(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);
void scanDoubling(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);
void scanHier(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);
void scanLasp1(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail);
void scanLasp2(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);

}  // namespace seqpar
