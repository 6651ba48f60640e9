// The order of the calls of a communicator's relays on one rank, whatever their plans.
//
// In a series of calls of one direction the ranks stay one head apart, so only the first call waits for it, and only
// once. Where the direction changes after every call, as in the steps of one layer or with recomputed layers, each call
// waits.
#pragma once

#include <memory>
#include <mutex>

#include "seqpar/seqpar.h"

namespace seqpar::attn::linear {

class RelayTurns {
 public:
  /// Those of a communicator, while one of its relays exists.
  static std::shared_ptr<RelayTurns> of(seqparComm_t comm);

  /// Records a call. Returns whether it follows one of the other direction, and is expected to be followed by one, as
  /// the latest series of its direction had one call.
  bool startsAndEnds(seqparDirection_t direction);

 private:
  std::mutex mutex_;
  int latest_ = -1;     ///< the direction of the latest call
  int length_[2] = {};  ///< calls of the latest series of a direction
};

}  // namespace seqpar::attn::linear
