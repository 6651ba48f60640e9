// The kernels of input_gate.h. They also run emulated.
//
// Work      2 to 32 adjacent lanes process a row, a token's values of one head; CTAs of 256 threads in steps of the
//           grid
// Roles     all lanes alike; the first lane of a row stores the gate's gradient
// Tiles     16 bytes per lane and access, if rows are aligned to them, otherwise one element
// Smem      none
// Barriers  none; sums over a row by shuffles
// Overlap   none
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/attn/linear/input_gate.h"

namespace seqpar::attn::input_gate {

constexpr int kThreads = 256;

/// Adjacent elements of T that one access reads or writes: 16 bytes if rows are aligned to them, else one.
template <class T, bool kAligned>
constexpr int kUnit = kAligned ? 16 / static_cast<int>(sizeof(T)) : 1;

/// Lanes of a row of `units`: a power of 2.
inline int lanesOf(int units) {
  int lanes = 1;
  while (lanes < units && lanes < 32) lanes *= 2;
  return lanes;
}

SEQPAR_BOTH_INLINE int64_t rowsOf(const InputGate& gate) {
  return gate.batch * gate.tokens * gate.heads;
}

template <class T, int kCount>
SEQPAR_DEVICE void load(float (&to)[kCount], const void* tensor, int64_t at) {
  const T* const from = static_cast<const T*>(tensor) + at;
  if constexpr (kCount == 1) {
    if constexpr (std::is_same_v<T, float>) {
      to[0] = *from;
    } else {
      to[0] = ptx::lowOf<T>(from->bits);
    }
  } else {
    uint32_t words[4];
    ptx::load(words, from);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        to[i] = asFloat(words[i]);
      } else {
        to[2 * i] = ptx::lowOf<T>(words[i]);
        to[2 * i + 1] = ptx::highOf<T>(words[i]);
      }
    }
  }
}

template <class T, int kCount>
SEQPAR_DEVICE void store(void* tensor, int64_t at, const float (&from)[kCount]) {
  T* const to = static_cast<T*>(tensor) + at;
  if constexpr (kCount == 1) {
    if constexpr (std::is_same_v<T, float>) {
      *to = from[0];
    } else {
      to->bits = static_cast<uint16_t>(ptx::pack<T>(from[0], 0));
    }
  } else {
    uint32_t words[4];
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        words[i] = asBits(from[i]);
      } else {
        words[i] = ptx::pack<T>(from[2 * i], from[2 * i + 1]);
      }
    }
    ptx::store(to, words);
  }
}

SEQPAR_DEVICE float loadGate(const InputGate& gate, int64_t at) {
  float number[1];
  if (gate.gateType == seqparFloat32) {
    load<float>(number, gate.gates.data, at);
  } else {
    load<Bf16>(number, gate.gates.data, at);
  }
  return number[0];
}

struct Row {
  int64_t batch, token, head;
  template <class Pointer>
  SEQPAR_DEVICE int64_t of(const Strided<Pointer>& tensor) const {
    return batch * tensor.batch + token * tensor.token + head * tensor.head;
  }
};

/// Short divisions where they suffice: long ones take most of the instructions of a row.
template <class Index>
SEQPAR_DEVICE Row rowAt(Index row, Index heads, Index tokens) {
  const Index token = row / heads, batch = token / tokens;
  return {int64_t{batch}, int64_t{token - batch * tokens}, int64_t{row - token * heads}};
}

/// Calls act(row, lane, whether the row exists) on all threads.
template <class Act>
SEQPAR_DEVICE void eachRow(const InputGate& gate, int lanes, const Act& act) {
  const int thread = ptx::thread(), lane = thread % lanes, ofRow = thread / lanes, atOnce = kThreads / lanes;
  const int64_t rows = rowsOf(gate);
  for (int64_t first = int64_t{ptx::block()} * atOnce; first < rows; first += int64_t{ptx::blocks()} * atOnce) {
    const bool exists = first + ofRow < rows;
    const int64_t row = exists ? first + ofRow : first;
    act(rows <= INT32_MAX ? rowAt<int32_t>(static_cast<int32_t>(row), gate.heads, static_cast<int32_t>(gate.tokens))
                          : rowAt<int64_t>(row, gate.heads, gate.tokens),
        lane, exists);
  }
}

template <class T, bool kAligned>
SEQPAR_DEVICE void values(const GateValues& pass, int lanes) {
  constexpr int kCount = kUnit<T, kAligned>;
  const InputGate& gate = pass.gate;
  eachRow(gate, lanes, [&](const Row& row, int lane, bool exists) {
    if (!exists) return;
    const float factor = loadGate(gate, row.of(gate.gates));
    const int64_t from = row.of(gate.values), to = row.of(pass.products);
    for (int column = lane * kCount; column < gate.dv; column += lanes * kCount) {
      float numbers[kCount];
      load<T>(numbers, gate.values.data, from + column);
      SEQPAR_UNROLL
      for (float& number : numbers) number *= factor;
      store<T>(pass.products.data, to + column, numbers);
    }
  });
}

template <class T, bool kAligned>
SEQPAR_DEVICE void gradients(const GateGradients& pass, int lanes) {
  constexpr int kCount = kUnit<T, kAligned>;
  const InputGate& gate = pass.gate;
  eachRow(gate, lanes, [&](const Row& row, int lane, bool exists) {
    float sum = 0;
    if (exists) {
      const float factor = loadGate(gate, row.of(gate.gates));
      const int64_t from = row.of(gate.values), to = row.of(pass.dValues);
      for (int column = lane * kCount; column < gate.dv; column += lanes * kCount) {
        float numbers[kCount], gradients[kCount];
        load<T>(numbers, gate.values.data, from + column);
        load<T>(gradients, pass.dValues.data, to + column);
        SEQPAR_UNROLL
        for (int i = 0; i < kCount; ++i) {
          sum += numbers[i] * gradients[i];
          gradients[i] *= factor;
        }
        store<T>(pass.dValues.data, to + column, gradients);
      }
    }
    for (int mask = 1; mask < lanes; mask *= 2) sum += ptx::shflXor(sum, mask);
    if (!exists || lane != 0 || pass.dGates.data == nullptr) return;
    const float number[1] = {sum};
    if (gate.gateType == seqparFloat32) {
      store<float>(pass.dGates.data, row.of(pass.dGates), number);
    } else {
      store<Bf16>(pass.dGates.data, row.of(pass.dGates), number);
    }
  });
}

}  // namespace seqpar::attn::input_gate
