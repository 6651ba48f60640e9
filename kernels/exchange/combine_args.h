// Arguments of the kernels that work on one GPU: on payloads that NCCL sends, and on terms of sums.
#pragma once

#include "kernels/exchange/lse_args.h"
#include "kernels/exchange/payload.h"

namespace seqpar::device {

/// A payload and the contiguous memory, aligned to 16 bytes, that it is copied from or to.
struct PayloadCopy {
  PeerPayload payload;
  std::byte* memory;
};

struct PayloadArgs {
  static constexpr int kMostCopies = 64;

  PayloadCopy copies[kMostCopies];
  int count = 0;
  const RegionArg* externalRegions = nullptr;  ///< all regions, if they are not inline
  RegionArg inlineRegions[kMostInlineRegions];

  SEQPAR_BOTH const RegionArg* regions() const { return externalRegions != nullptr ? externalRegions : inlineRegions; }
};

/// One region and its terms: if `existing`, first the region's content, then terms [first, first + count) of the list.
struct SumArg {
  RegionArg region;  ///< its width also divides the terms' addresses and a row's bytes
  int first, count;
  int existing;
};

/// Sums into regions that do not overlap.
struct CombineArgs {
  static constexpr int kMostSums = 32;
  static constexpr int kMostTerms = 128;

  SumArg sums[kMostSums];
  int count = 0;
  const std::byte* terms[kMostTerms];
  LseArgs lse;  ///< if its rows are not 0: of the only sum
};

}  // namespace seqpar::device
