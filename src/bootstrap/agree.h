// Steps of a collective setup: a failure of one rank must become a failure of all.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "bootstrap/allgather.h"

namespace seqpar {

/// The failure of a rank.
struct Cause {
  int rank = 0;
  seqparResult_t result = seqparSuccess;
  std::string text;
};

/// Collective: none if `mine` is null on every rank. The cause of a failure is a rank with another result than
/// RemoteError, which only says that another rank is missing: this rank, or the lowest other one. Without such a rank
/// it is this rank if `mine` is set, or the lowest rank that failed.
std::optional<Cause> findCause(Allgather& control, const std::exception_ptr& mine);

/// Collective: returns if `mine` is null on every rank. Otherwise throws the error of findCause(), and names its rank
/// if that is another one.
void agree(Allgather& control, const std::exception_ptr& mine);

/// Collective: runs `step`, which must not be collective, on every rank, then agrees.
template <typename Step>
void together(Allgather& control, Step&& step) {
  std::exception_ptr failure;
  try {
    step();
  } catch (...) {
    failure = std::current_exception();
  }
  agree(control, failure);
}

/// Collective: gathers pieces of different sizes.
std::vector<std::vector<std::byte>> gatherParts(Allgather& control, std::span<const std::byte> mine);

}  // namespace seqpar
