// The slices of seqparAttnDesc_t, checked, and reduced to the scores that the mask and the window allow.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attn/block/slices.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// The slices as they were given, for the comparison between ranks: 6 numbers each. Empty without slices.
std::vector<int64_t> numbersOf(const seqparAttnDesc_t& desc);

/// The mask of a description whose other fields are complete; null without slices. Throws Error in the name of `call`.
std::shared_ptr<const SliceMask> readSlices(const char* call, const seqparAttnDesc_t& desc);

/// The mask of a checked description as slices: those that it has, or those of its mask, window and packed sequences.
std::shared_ptr<const SliceMask> maskOf(const seqparAttnDesc_t& desc, std::span<const int64_t> cuSeqlens,
                                        std::shared_ptr<const SliceMask> slices);

}  // namespace seqpar::attn
