// Merging partial attention of the same queries over all ranks: all-reduce, and reduce-scatter by heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/lse.h"

namespace seqpar {

/// Partial results out [rows][heads][elements of type], lse [rows][heads] of all ranks of a communicator.
struct LseMerge {
  std::size_t rows = 0, heads = 0;
  std::size_t rowBytes = 0;  ///< of one head of one row
  seqparDataType_t type = seqparFloat32;
  const std::int32_t* rowCount = nullptr;  ///< rows in use; null: all
  bool byHeads = false;                    ///< each rank receives its heads; else everything
  const std::byte* out = nullptr;
  const float* lse = nullptr;
  std::byte* outMerged = nullptr;
  float* lseMerged = nullptr;
};

/// The reduce-scatter in a merge of `ranks` ranks: by heads, or of equal parts of the rows to their final addresses.
LseReduction scatterOf(const LseMerge& given, int ranks, int rank);

/// The all-gather that follows in an all-reduce; in place. `bytes`: of an element of scatterOf()'s tokens.
Route gatherAfter(const LseReduction& scattered, std::size_t bytes);

/// One rank's part. Inputs and outputs may be equal in an all-reduce.
void mergeLseOnHost(Mailbox& mail, const LseMerge& given);

}  // namespace seqpar
