// One All-Scan of all_scan_perf: its data on this rank, and the works that the table's rows measure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "affine_map.h"
#include "common/buffer.h"
#include "common/nccl.h"
#include "common/timing.h"
#include "scan_data.h"

namespace seqpar::perf {

enum class Outputs { Prefix, Total, Both };

class Problem {
 public:
  /// `params` without algorithm and blocks.
  Problem(const seqparAllScanParams_t& params, Outputs outputs, Group& group);

  const seqparAllScanParams_t& params() const { return params_; }
  AffineMap map() const;
  seqparDirection_t direction() const { return static_cast<seqparDirection_t>(params_.direction); }
  seqparComm_t comm() const { return comm_; }
  size_t bytes() const { return state_.bytes(); }
  size_t count() const;
  bool wantsPrefix() const { return outputs_ != Outputs::Total; }
  bool wantsTotal() const { return outputs_ != Outputs::Prefix; }

  void* state() { return state_.data(); }
  /// Null for SUM.
  const float* transition() { return static_cast<const float*>(transition_.data()); }
  /// Addresses of the outputs; null if not requested. In place, the first requested output overwrites the state.
  void* prefix(bool inPlace) { return dataOf(prefixBuffer(inPlace)); }
  void* total(bool inPlace) { return dataOf(totalBuffer(inPlace)); }

  /// Restores the inputs and fills the outputs with NaN.
  void reset();
  /// The number of wrong elements of the outputs.
  size_t wrong(bool inPlace);
  /// The number of wrong elements of an output in host memory.
  size_t wrongPrefix(const void* got) const;
  size_t wrongTotal(const void* got) const;

 private:
  Problem(const seqparAllScanParams_t& params, Outputs outputs, seqparComm_t comm, const ScanData& data);

  static void* dataOf(Buffer* buffer) { return buffer == nullptr ? nullptr : buffer->data(); }
  Buffer* prefixBuffer(bool inPlace);
  Buffer* totalBuffer(bool inPlace);

  seqparAllScanParams_t params_;
  Outputs outputs_;
  seqparComm_t comm_;
  Buffer original_, transition_, state_, prefix_, total_;
  std::vector<std::byte> typedPrefix_, typedTotal_;
};

/// The library's All-Scan on `problem`; enqueued on `stream` unless that is null.
Work libraryWork(std::shared_ptr<Problem> problem, int algorithm, int blocks, bool inPlace, void* stream);

/// A peer of the library, on the same data.
struct Peer {
  std::string name;
  int blocks;  ///< 0: does not apply
  Work outOfPlace;
  std::optional<Work> inPlace;
};

/// MPI_Exscan, the chain in one block and the chain in `blocks` blocks. fp32 only.
std::vector<Peer> makePeers(std::shared_ptr<Problem> problem, int blocks);

#ifdef SEQPAR_PERF_CUDA
/// LASP-2 (an all-gather of S and A and a local combine), and a chain in 1, 2, 4 and 8 blocks. fp32 only.
std::vector<Peer> makeGpuPeers(std::shared_ptr<Problem> problem, Group& group, Nccl& nccl);
#endif

}  // namespace seqpar::perf
