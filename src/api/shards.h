// Argument checks of exchange shapes.
#pragma once

#include <cstddef>

#include "comm/agreement.h"
#include "comm/communicator.h"
#include "exchange/halo.h"
#include "exchange/heads.h"
#include "exchange/lse.h"
#include "exchange/shards.h"
#include "seqpar/exchange.h"

namespace seqpar {

/// A checked shape, and this rank's place in it.
template <typename Shape>
struct Checked {
  Shape shape;
  size_t member = 0;
  seqparDataType_t type = seqparFloat32;
  size_t localBytes = 0;  ///< of the array of this member's tokens
  size_t wholeBytes = 0;  ///< of the array of all tokens: with all heads' elements, or this member's heads
};

/// Throw InvalidArgument for invalid fields. Collective over the members if arguments are compared (SEQPAR_CHECK):
/// values that differ are InvalidUsage. `others` are further values of the call to compare.
Checked<HeadShards> checkHeadShards(const char* call, const seqparHeadShards_t* shards, Communicator& comm);
Checked<Shards> checkShards(const char* call, const seqparShards_t* shards, Communicator& comm,
                            std::initializer_list<NamedValue> others = {});
/// For plans of all ranks: refuses a group, and compares nothing.
Checked<Shards> readShards(const char* call, const seqparShards_t* shards, const Communicator& comm);

Halo checkHalo(const char* call, const seqparHalo_t* halo);

/// The heads of a member; queryHeads 0 means `heads`. Throws InvalidArgument.
HeadRange checkHeads(const char* call, int64_t heads, int64_t queryHeads, int members, int member);

}  // namespace seqpar
