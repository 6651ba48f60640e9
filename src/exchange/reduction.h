// Exchanges that combine: contributions of several ranks to one region are added, in fp32 and in an order that the
// caller chooses, so that results depend neither on timing nor on how messages are cut.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "exchange/route.h"

namespace seqpar {

/// A region of a receive buffer and its contributing ranks. Without any term it keeps its contents.
struct Sum {
  StridedRegion region;
  bool existing = false;  ///< the region's present contents are the first term
  std::vector<int> from;  ///< ranks in order of addition, each once; may include this rank
};

/// One rank's part. Payloads are as in a Route, also from a rank to itself: a's sends to b, concatenated in order, are
/// one payload of bytes; b's regions with a in `from`, in the order of b's list, are the same payload. A region that
/// overlaps an earlier one must share a rank with it, which keeps the two in order.
struct Reduction {
  std::vector<Transfer> sends;
  std::vector<Sum> sums;
  int ctas = 0;  ///< Route::ctas
};

/// Factors of the terms of a sum, one per row of elements. A factor of 0 skips the term, even if it holds NaN or
/// infinity.
struct RowFactors {
  size_t elements = 0;             ///< elements of a row; every run of every region consists of whole rows
  std::vector<const float*> term;  ///< [terms][rows]: terms in the order of Sum (existing, from), rows as in Reduction
};

/// One rank's part of a reduction of elements of `type`, inside an operation of `mail`; see exchangeOnHost(). Buffers
/// are aligned to their elements. Send and receive buffers do not overlap.
void reduceOnHost(Mailbox& mail, const Reduction& reduction, seqparDataType_t type,
                  std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                  const RowFactors* factors = nullptr);

}  // namespace seqpar
