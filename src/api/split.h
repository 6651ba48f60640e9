// Creates communicators from an existing one, with their entries for the C interface.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "api/handles.h"
#include "comm/config.h"

namespace seqpar {

/// Collective over `parent`: as seqparCommSplit(). Null for SEQPAR_SPLIT_NOCOLOR. If it fails on one rank, it fails on
/// all ranks of `parent`, which stays usable. If ranks of a process share a GPU, groups are created one after the
/// other: a device-wide wait during the creation of one group could otherwise wait for another group's kernels.
std::shared_ptr<CommEntry> splitEntry(Communicator& parent, int color, int key, const CommConfig& config);

/// Communicators that end unless they are handed over. All ranks see a failed split, so ending waits for no rank.
class CreatedEntries {
 public:
  using Add = std::function<seqparComm_t(std::shared_ptr<CommEntry>)>;
  using Remove = std::function<void(seqparComm_t)>;

  CreatedEntries() = default;
  CreatedEntries(const CreatedEntries&) = delete;
  CreatedEntries& operator=(const CreatedEntries&) = delete;
  ~CreatedEntries();

  void add(std::shared_ptr<CommEntry> entry) { entries_.push_back(std::move(entry)); }
  /// Creates handles for all of them, in order, or for none: if `add` throws, `remove` gets the handles created so far,
  /// `into` contains only nulls, and the communicators stay in this object.
  void handOver(std::span<seqparComm_t> into, const Add& add, const Remove& remove);

 private:
  std::vector<std::shared_ptr<CommEntry>> entries_;
};

}  // namespace seqpar
