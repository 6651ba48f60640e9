#pragma once

#include "attn/block/bf16_kernels.h"

namespace seqpar::attn {

void multiplyBf16AmxEmulated(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                             const uint32_t* b, bool accumulate, float* c);
void forwardBf16AmxEmulated(const Bf16Forward& tile);
void backwardBf16AmxEmulated(const Bf16Backward& tile);

}  // namespace seqpar::attn
