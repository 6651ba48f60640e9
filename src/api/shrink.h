// Creates the communicator of the ranks that survived a failure, with its entry for the C interface.
#pragma once

#include <chrono>
#include <memory>

#include "api/handles.h"
#include "comm/config.h"

namespace seqpar {

struct ShrinkOptions {
  CommConfig config;
  std::chrono::milliseconds timeout{0};  ///< of the vote
  int minRanks = 0;
};

/// Collective over the surviving ranks of `parent`, which is lost afterwards. If members are lost before the new
/// communicator exists on all of them, the survivors vote again.
std::shared_ptr<CommEntry> shrinkEntry(Communicator& parent, const ShrinkOptions& options);

}  // namespace seqpar
