// Prepare with marks (marks_sm90.h), for decays of channels: CTAs take records in turns.
#pragma once

#include "kernels/attn/linear/delta/half/marks_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_channels.h"

namespace seqpar::attn::delta::half {

template <class T>
SEQPAR_DEVICE void prepareTurns(const Task& task) {
  PrepareMemory memory{};
  memory.place(true, partsOf(ptx::kIsBf16<T> ? seqparBfloat16 : seqparFloat16));
  takeTurns(task, memory.turn,
            [&](int head, int number, int64_t batch) { Prepare<T, true>::runRecord(task, head, number, batch); });
}

}  // namespace seqpar::attn::delta::half
