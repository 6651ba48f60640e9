// Arguments that attention plans and short convolutions have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// A copy of desc->cuSeqlens of packed sequences, [sequences + 1] ascending from 0 to `tokens`; empty with 0 sequences.
/// Throws InvalidArgument.
std::vector<int64_t> readPacking(const char* call, int64_t sequences, const int64_t* cuSeqlens, int64_t batch,
                                 int64_t tokens);

/// A copy of desc->tokensOfRanks, each 0 to 2^48. Throws InvalidArgument.
std::vector<int64_t> readLengths(const char* call, const int64_t* tokensOfRanks, int ranks);

/// Refuses a call on a plan whose communicator (null: none) has been freed, and on a host a `stream` that is none:
/// InvalidArgument, before any part of the call is enqueued.
void requireUse(const char* call, seqparComm_t comm, bool onDevice, void* stream);

}  // namespace seqpar::attn
