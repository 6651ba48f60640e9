// Arguments common to attention plans and short convolutions.
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

/// Rejects a call on a plan with a freed communicator (null: none), and on a host an invalid `stream`: InvalidArgument,
/// before any part of the call is enqueued. On a lost communicator: throws its error.
void requireUse(const char* call, seqparComm_t comm, bool onDevice, void* stream);

}  // namespace seqpar::attn
