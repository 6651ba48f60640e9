// The operation that bootstraps a communicator.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/health.h"
#include "bootstrap/token.h"

namespace seqpar {

/// Gathers equal-sized pieces of all ranks, in rank order. Implemented over TCP, over memory, and over the caller's
/// vtable.
class Allgather {
 public:
  Allgather() = default;
  Allgather(const Allgather&) = delete;
  Allgather& operator=(const Allgather&) = delete;
  virtual ~Allgather() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Collective. all.size() == size() * mine.size(). Throws Error (RemoteError if a rank failed or did not arrive in
  /// time).
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  /// The secret that only these ranks know, from which they derive further secrets. None: data of gather() is already
  /// as safe as a secret (the caller's channel, or memory).
  virtual std::optional<Token> secret() const { return std::nullopt; }

  /// Fails when one of these ranks is lost, before the next gather() does. Null if that is not known.
  virtual const Health* health() const { return nullptr; }

  /// gather() of one trivially copyable value per rank.
  template <typename Value>
  void gatherValues(const Value& mine, std::span<Value> all) {
    gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
  }
};

}  // namespace seqpar
