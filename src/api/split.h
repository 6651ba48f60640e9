// Communicators out of an existing one, with what the C interface keeps beside them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "api/handles.h"
#include "comm/config.h"

namespace seqpar {

/// Collective over `parent`: as seqparCommSplit(). Null for SEQPAR_SPLIT_NOCOLOR. If it fails on one rank, it fails on
/// all of `parent`, which goes on. Where ranks of a process share a GPU, groups are made one after the other: what
/// making one waits for on a device could else wait for another one's kernels.
std::shared_ptr<CommEntry> splitEntry(Communicator& parent, int color, int key, const CommConfig& config);

/// Communicators that end unless they are handed over: all ranks see a failed split, so nobody is waited for.
class MadeEntries {
 public:
  using Add = std::function<seqparComm_t(std::shared_ptr<CommEntry>)>;
  using Remove = std::function<void(seqparComm_t)>;

  MadeEntries() = default;
  MadeEntries(const MadeEntries&) = delete;
  MadeEntries& operator=(const MadeEntries&) = delete;
  ~MadeEntries();

  void add(std::shared_ptr<CommEntry> entry) { entries_.push_back(std::move(entry)); }
  /// Gives all of them handles, in order, or none: if `add` throws, `remove` gets the handles that there are already,
  /// `into` holds nothing but nulls, and the communicators stay here.
  void handOver(std::span<seqparComm_t> into, const Add& add, const Remove& remove);

 private:
  std::vector<std::shared_ptr<CommEntry>> entries_;
};

}  // namespace seqpar
