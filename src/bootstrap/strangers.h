// Connections that have not proved themselves: how many a server keeps, and which one makes room for a new one. A
// stranger may open many connections, but does not keep ranks out: an address has a share, and every connection has
// time for its handshake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/deadline.h"

namespace seqpar {

class Strangers {
 public:
  using Id = uint64_t;
  using Time = Deadline::Clock::time_point;

  static constexpr size_t kMost = 256, kMostOfSource = 16;    ///< the latter: from one address
  static constexpr std::chrono::milliseconds kPatience{250};  ///< before a connection makes room for a new one

  /// Whether there is room, or an old connection that makes some. Until then, new ones wait in the system's queue.
  bool mayAdd(Time now) const;
  /// Adds a connection from `source`; returns the one to close for it.
  std::optional<Id> add(Id id, uint64_t source, Time now);
  /// It has proved itself, or is closed.
  void forget(Id id);
  /// When mayAdd() becomes true, if no connection is forgotten before.
  Time roomAt() const;

 private:
  struct One {
    Id id = 0;
    uint64_t source = 0;
    Time since;
  };
  std::vector<One> all_;  ///< oldest first
};

}  // namespace seqpar
