// Where a communicator's scans run: on host memory, on GPUs that reach each other's memory (peers/), or on GPUs by
// NCCL's steps (nccl/). Only plan/backend.cpp and the table of algorithms know which of them a build has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "scan/registry.h"
#include "seqpar/scan_device.h"

namespace seqpar {

/// Owns the memory that a seqparScanDevice_t points to.
class HeadWindow {
 public:
  HeadWindow() = default;
  HeadWindow(const HeadWindow&) = delete;
  HeadWindow& operator=(const HeadWindow&) = delete;
  virtual ~HeadWindow() = default;

  /// For kernels of this rank.
  virtual seqparScanDevice_t view() const = 0;
};

class ScanBackend {
 public:
  ScanBackend() = default;
  ScanBackend(const ScanBackend&) = delete;
  ScanBackend& operator=(const ScanBackend&) = delete;
  virtual ~ScanBackend() = default;

  /// All algorithms' predicted times, fastest first; the same on all ranks. `blocks` 0: the best for each.
  virtual std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const = 0;

  /// Collective: runs `row` in `blocks` blocks in the order of `stream`. The problem's pointers are to memory of the
  /// communicator's kind. InvalidUsage for what has no time in estimates().
  virtual void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
                   const CallerStream& stream) = 0;

  /// What a problem must fit here, in words.
  virtual std::string limits() const = 0;

  /// For seqparCommQuery(): the links' figures, if this backend measured them.
  virtual std::optional<LinkModel> links() const { return std::nullopt; }

  /// Collective: memory for kernels that pass so many heads of so many elements along themselves; the communicator must
  /// outlive it. InvalidUsage where ranks do not reach each other's memory.
  virtual std::unique_ptr<HeadWindow> makeHeadWindow(int64_t, int64_t, seqparDirection_t) {
    fail(seqparInvalidUsage, "a scan inside kernels, expected ranks on GPUs that reach each other by load and store");
  }
};

/// The backend of a communicator on host memory (host_backend.cpp). `comm` must outlive it, as with the other two.
std::unique_ptr<ScanBackend> makeHostScans(Communicator& comm);

/// Throws InvalidUsage, for a row that is null on the backend `where` ("over NCCL"): the error names it, and the rows
/// for which `can` holds.
template <typename Can>
[[noreturn]] void refuseAlgorithm(const ScanAlgorithm& row, const char* where, const Can& can) {
  fail(seqparInvalidUsage, "seqparAllScan: the algorithm ", row.name, " is not done ", where, "; expected ",
       scanAlgorithmsThat(can));
}

}  // namespace seqpar
