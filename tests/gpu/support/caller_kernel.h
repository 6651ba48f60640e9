// A caller's block kernel on GPUs, by the definition and in fp64: one thread per row.
#pragma once

#include <atomic>

#include "seqpar/attn_plan.h"

namespace seqpar::attn::test {

/// It counts its calls in `calls`, which must outlive it.
seqparAttnKernel_t callerKernel(std::atomic<int>& calls);

}  // namespace seqpar::attn::test
