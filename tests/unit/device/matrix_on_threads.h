// MATRIX All-Scans by the lane programs of the kernels, on threads, with plain arithmetic.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "scan/matrix_plan.h"
#include "scan_case.h"
#include "thread_peers.h"

namespace seqpar::test {

inline constexpr std::array kMatrixAlgorithms = {seqparScanChain, seqparScanLasp1};

/// A scan by all peers, with outputs[rank]; `group` panels are worked on together.
class ThreadMatrixScan {
 public:
  ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs, int group);

  /// One thread's part.
  void run(seqparScanAlgorithm_t algorithm, const LaneThread& thread);

  ScanBuffers& buffers(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }
  const ScanCase& scanCase() const { return *case_; }

 private:
  struct RankScan {
    std::vector<MatrixScan> scans;
    std::vector<std::vector<std::byte>> shared;  ///< of each lane
  };

  std::unique_ptr<const ScanCase> case_;  ///< where the buffers look for it
  std::vector<ScanBuffers> buffers_;
  std::vector<RankScan> ranks_;
};

}  // namespace seqpar::test
