// The ranks of a perf binary, and their communication outside of the measured work.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu.h"
#include "seqpar/seqpar.h"

namespace seqpar::perf {

/// Throws std::runtime_error with the call and the library's error text unless `result` is success.
void require(seqparResult_t result, const char* call, seqparComm_t comm = nullptr);
/// An error's text, prefixed with the call unless it names the call already.
std::string withCall(const std::string& call, const std::string& text);

/// One rank's place among all ranks.
class Group {
 public:
  Group(int rank, int size) : rank_(rank), size_(size) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  seqparComm_t comm() const { return comm_; }
  void setComm(seqparComm_t comm) { comm_ = comm; }
  /// This rank's GPU; null on the host.
  Gpu* gpu() const { return gpu_.get(); }
  void setGpu(std::unique_ptr<Gpu> gpu) { gpu_ = std::move(gpu); }

  /// Collective: equal-sized blocks of all ranks in rank order.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Collective: returns when all ranks have called it.
  virtual void barrier() = 0;

  /// gather() of equally many values per rank.
  std::vector<double> gather(std::span<const double> mine);
  /// gather() of one text per rank; texts are truncated to 255 bytes.
  std::vector<std::string> gatherText(const std::string& mine);

 private:
  seqparComm_t comm_ = nullptr;
  int rank_, size_;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace seqpar::perf
