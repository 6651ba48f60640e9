// Steps of a collective setup: a failure of one rank must become a failure of all.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "bootstrap/allgather.h"

namespace seqpar {

/// Collective: returns if `mine` is null on every rank. Otherwise rethrows it or, if it is null, throws the error of
/// the lowest other rank, naming that rank.
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
