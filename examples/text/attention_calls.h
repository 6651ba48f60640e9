// Helpers for calls of seqpar/attn.h.
#pragma once

#include <stdexcept>
#include <vector>

#include "seqpar/attn.h"

/// Throws the text of a failed call.
inline void checkAttention(seqparResult_t result) {
  if (result != seqparSuccess) throw std::runtime_error(seqparAttnGetLastError());
}

/// All strides 0: dense. The library does not write to inputs.
inline seqparAttnTensor_t denseTensor(const std::vector<float>& numbers) {
  return {const_cast<float*>(numbers.data()), 0, 0, 0};
}
