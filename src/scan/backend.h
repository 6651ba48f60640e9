// Backends of a communicator's scans: host memory, GPUs that reach each other's memory (peers/), or GPUs in NCCL's
// steps (nccl/). Only plan/backend.cpp and the table of algorithms know which backends a build has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "scan/registry.h"
#include "seqpar/scan_device.h"

namespace seqpar {

/// Owns the memory that a seqparScanDevice_t refers to.
class HeadWindow {
 public:
  HeadWindow() = default;
  HeadWindow(const HeadWindow&) = delete;
  HeadWindow& operator=(const HeadWindow&) = delete;
  virtual ~HeadWindow() = default;

  /// For kernels of this rank.
  virtual seqparScanDevice_t view() const = 0;
};

/// A repeated scan without flags. Stores everything that depends on the shape only.
class PreparedScan {
 public:
  PreparedScan() = default;
  PreparedScan(const PreparedScan&) = delete;
  PreparedScan& operator=(const PreparedScan&) = delete;
  virtual ~PreparedScan() = default;

  /// Collective: as ScanBackend::run().
  virtual void run(const ScanArrays<void>& arrays, const CallerStream& stream) = 0;
};

class ScanBackend {
 public:
  ScanBackend() = default;
  ScanBackend(const ScanBackend&) = delete;
  ScanBackend& operator=(const ScanBackend&) = delete;
  virtual ~ScanBackend() = default;

  /// All algorithms' predicted times, fastest first; the same on all ranks. `blocks` 0: the best for each.
  virtual std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const = 0;

  /// Whether `row` multiplies transitions of several positions here.
  virtual bool multiplies(const ScanAlgorithm& row) const = 0;

  /// Collective: runs `row` in `blocks` blocks in the order of `stream`. The problem's pointers are to memory of the
  /// communicator's kind. Throws InvalidUsage for an algorithm with infinite time in estimates().
  virtual void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
                   const CallerStream& stream) = 0;

  /// Prepares scans of this shape, with any arrays. Null: not implemented by this backend.
  virtual std::shared_ptr<PreparedScan> prepare(const ScanProblem&, const ScanAlgorithm&, int) { return nullptr; }

  /// The backend's limits on problems, as text.
  virtual std::string limits() const = 0;

  /// For seqparCommQuery(): the link parameters, if this backend measured them.
  virtual std::optional<LinkModel> links() const { return std::nullopt; }

  /// Collective: memory for kernels that pass the given number of heads of the given number of elements between ranks.
  /// The communicator must outlive it. Throws InvalidUsage if ranks do not reach each other's memory.
  virtual std::unique_ptr<HeadWindow> makeHeadWindow(int64_t, int64_t, seqparDirection_t) {
    fail(seqparInvalidUsage, "a scan inside kernels, expected ranks on GPUs that reach each other by load and store");
  }
};

/// The backend of a communicator on host memory (host_backend.cpp). `comm` must outlive it.
std::unique_ptr<ScanBackend> makeHostScans(Communicator& comm);

/// Throws InvalidUsage for a row that is null on the backend `where` ("over NCCL"). The error names the row, and the
/// rows that satisfy `can`.
template <typename Can>
[[noreturn]] void refuseAlgorithm(const ScanAlgorithm& row, const char* where, const Can& can) {
  fail(seqparInvalidUsage, "seqparAllScan: the algorithm ", row.name, " is not done ", where, "; expected ",
       scanAlgorithmsThat(can));
}

}  // namespace seqpar
