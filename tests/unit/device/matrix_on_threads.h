// MATRIX All-Scans by the channel programs of the kernels, on threads, with plain arithmetic.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/scan/matrix_maps.h"
#include "kernels/scan/matrix_teams.h"
#include "scan_case.h"
#include "scan_rows.h"
#include "thread_peers.h"

namespace seqpar::test {

/// What the threads of a CTA share.
struct MatrixShared {
  MatrixShared(int dk, int group, int positions, int threadsOfChannel);
  MapMemory memory();

  std::vector<SplitPair> pairs, teamMemory;
  std::vector<float> matrix, gathered;
  CursorPositions out, in;
  std::unique_ptr<std::array<Meeting, 2>> teams;
};

/// A scan by all peers, with outputs[rank]; `group` panels are worked on together.
class ThreadMatrixScan {
 public:
  ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs, int group,
                   int threadsOfChannel);

  /// One thread's part. CHAIN with 2 or 4 threads per channel and suitable shapes is run by teams, except on every
  /// third rank.
  void run(seqparScanAlgorithm_t algorithm, const ChannelThread& thread);

  ScanBuffers& buffers(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }
  const ScanCase& scanCase() const { return *case_; }

 private:
  struct RankScan {
    std::vector<MatrixScan> scans;
    std::vector<MatrixShared> shared;  ///< of each CTA
    std::unique_ptr<Meeting> all;      ///< scans of a rank follow each other, as kernels of a stream do
  };

  std::unique_ptr<const ScanCase> case_;  ///< the buffers refer to it
  std::vector<ScanBuffers> buffers_;
  std::vector<RankScan> ranks_;
};

}  // namespace seqpar::test
