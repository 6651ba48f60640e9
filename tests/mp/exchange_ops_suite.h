// The calls of seqpar/exchange.h on a live communicator: random cases, each element checked.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

struct ExchangeOps {
  int cases = 100;
  bool sums = true;         ///< with calls that add
  std::size_t most = 4000;  ///< tokens of a member in a large case; a token has up to some 500 bytes
};

/// Collective. Cases depend on `seed` alone (equal on all ranks): every call and type, uneven lengths, empty shards,
/// any number of heads, groups in any order, in place, with and without a stream. Values are chosen so that results are
/// exact. Throws std::runtime_error with the case at the first wrong element.
void runExchangeOps(seqparComm_t comm, std::uint64_t seed, const ExchangeOps& options = {});

}  // namespace seqpar::test
