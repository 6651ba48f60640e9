// The steps of a collective setup, in which a failure of one rank must become a failure of all of them.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "bootstrap/allgather.h"

namespace seqpar {

/// Collective: returns if `mine` is null on every rank. Otherwise rethrows it, or else throws the first other rank's
/// error under that rank's name.
void agree(Allgather& control, const std::exception_ptr& mine);

/// Collective: runs `step`, which must not be collective, on every rank, and agrees.
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
std::vector<std::vector<std::byte>> gatherPieces(Allgather& control, std::span<const std::byte> mine);

}  // namespace seqpar
