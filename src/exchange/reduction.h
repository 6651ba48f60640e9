// Exchanges that combine: contributions of several ranks to one region are added, in fp32 and in an order that the
// caller gives, so that results depend neither on timing nor on how messages are cut.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "exchange/route.h"

namespace seqpar {

/// A region of a receive buffer and who contributes to it. Without any term it keeps what it holds.
struct Sum {
  StridedRegion region;
  bool existing = false;  ///< what stands there is the first term
  std::vector<int> from;  ///< ranks in the order in which they are added, each once; may include this one
};

/// One rank's part. Payloads are as in a Route, also from a rank to itself: all that a sends to b, one region after the
/// other, is one payload of bytes; b's regions with a among `from`, in the order of b's list, are the same payload. A
/// region that overlaps an earlier one has a rank in common with it, so that they are done in this order.
struct Reduction {
  std::vector<Transfer> sends;
  std::vector<Sum> sums;
};

/// Factors of the terms of a sum, a number for each row of elements. A factor of 0 leaves the term out, whatever it
/// holds.
struct RowFactors {
  size_t elements = 0;             ///< elements of a row; every run of every region is made of whole rows
  std::vector<const float*> term;  ///< [terms][rows]: terms in the order of Sum (existing, from), rows as in Reduction
};

/// One rank's part of a reduction of elements of `type`, inside an operation of `mail`; see exchangeOnHost(). Buffers
/// are aligned to their elements. Send and receive buffers do not overlap.
void reduceOnHost(Mailbox& mail, const Reduction& reduction, seqparDataType_t type,
                  std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                  const RowFactors* factors = nullptr);

}  // namespace seqpar
