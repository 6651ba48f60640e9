// All-Scans by the channel programs of the kernels, on threads.
#pragma once

#include <vector>

#include "scan/peers/task.h"
#include "scan_case.h"
#include "scan_rows.h"
#include "thread_peers.h"

namespace seqpar::test {

/// One thread's part of a scan. False: gave up.
bool runScanChannel(seqparScanAlgorithm_t algorithm, const ScanTask& task, const ChannelThread& thread);

/// A scan by all peers, with outputs[rank].
class ThreadScan {
 public:
  /// `channels`: how many to use.
  ThreadScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs, int channels);

  /// One thread's part. False: gave up.
  bool run(seqparScanAlgorithm_t algorithm, const ChannelThread& thread) const;

  ScanBuffers& buffers(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }
  const ScanCase& scanCase() const { return case_; }

 private:
  ScanCase case_;
  std::vector<ScanBuffers> buffers_;
  std::vector<std::vector<ScanTask>> tasks_;
};

}  // namespace seqpar::test
