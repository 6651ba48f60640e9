// The map of a rank: how its tokens change a state that enters before them, or in reverse a gradient that enters after
// them. seqparAllScan() composes the maps of the ranks.
#pragma once

#include "seqpar/scan.h"

namespace seqpar::attn::linear {

/// x -> A x + states, in seqparAllScan()'s layout. In reverse x -> A^T x + states, with the A of the forward.
struct StateMap {
  float* states = nullptr;                     ///< [batch][heads][headDim][valueDim]
  float* transition = nullptr;                 ///< A: nothing, [batch][heads], ...[headDim] or ...[headDim][headDim]
  seqparScanOp_t kind = seqparScanSum;         ///< the kind of A
  seqparDecayForm_t form = seqparDecayLinear;  ///< of A
};

/// The parts of a rank's map that other ranks, or the caller's final state, depend on.
enum class MapUse {
  Nothing,  ///< the map may be undefined
  States,   ///< the incoming state is zero or ignored: A may be 0
  Whole
};

}  // namespace seqpar::attn::linear
