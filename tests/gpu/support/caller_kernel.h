// A block kernel on GPUs as a caller might bring one, by the definition and in fp64: a thread a row.
#pragma once

#include <atomic>

#include "seqpar/attn_plan.h"

namespace seqpar::attn::test {

/// It counts its calls in `calls`, which must outlive it.
seqparAttnKernel_t callerKernel(std::atomic<int>& calls);

}  // namespace seqpar::attn::test
