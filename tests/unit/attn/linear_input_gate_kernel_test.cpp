// The kernels of the input gate on an emulated CTA.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "base/convert.h"
#include "kernels/attn/linear/input_gate_kernel.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

/// [batch][heads][tokens][dim + gap], aligned to 16 bytes.
struct Array {
  seqparDataType_t type;
  int64_t tokens, heads, pitch;
  std::vector<std::max_align_t> memory;

  Array(seqparDataType_t of, const InputGate& gate, int64_t dim, int64_t gap)
      : type(of), tokens(gate.tokens), heads(gate.heads), pitch(dim + gap) {
    const auto bytes = static_cast<size_t>(gate.batch * heads * tokens * pitch) * sizeOf(type);
    memory.assign(bytes / sizeof(std::max_align_t) + 1, {});
  }
  template <class Pointer>
  Strided<Pointer> view() {
    return {memory.data(), heads * tokens * pitch, pitch, tokens * pitch};
  }
  std::byte* at(int64_t batch, int64_t token, int64_t head, int64_t column) {
    const int64_t index = ((batch * heads + head) * tokens + token) * pitch + column;
    return reinterpret_cast<std::byte*>(memory.data()) + static_cast<size_t>(index) * sizeOf(type);
  }
  float get(int64_t batch, int64_t token, int64_t head, int64_t column) {
    float number = 0;
    toFloat(at(batch, token, head, column), type, &number, 1);
    return number;
  }
  void set(int64_t batch, int64_t token, int64_t head, int64_t column, float number) {
    fromFloat(&number, at(batch, token, head, column), type, 1);
  }
};

float roundedTo(seqparDataType_t type, float number) {
  std::byte bytes[4];
  fromFloat(&number, bytes, type, 1);
  toFloat(bytes, type, &number, 1);
  return number;
}

template <class T, bool kAligned>
void checkKernels(seqparDataType_t type, seqparDataType_t gateType, int dv, uint64_t seed) {
  std::mt19937_64 random(seed);
  InputGate gate;
  gate.batch = 1 + static_cast<int64_t>(random() % 2);
  gate.tokens = 1 + static_cast<int64_t>(random() % 30);
  gate.heads = 1 + static_cast<int>(random() % 5);
  gate.dv = dv;
  gate.type = type;
  gate.gateType = gateType;
  CAPTURE(type, gateType, dv, gate.batch, gate.tokens, gate.heads, seed);
  const int64_t gap = kAligned ? 8 : 1;
  Array values(type, gate, dv, gap), products(type, gate, dv, 0), gradients(type, gate, dv, gap);
  Array gates(gateType, gate, 1, 2), dGates(gateType, gate, 1, 0);
  std::normal_distribution<float> draw;
  const auto each = [&](const auto& act) {
    for (int64_t b = 0; b < gate.batch; ++b) {
      for (int64_t t = 0; t < gate.tokens; ++t) {
        for (int64_t h = 0; h < gate.heads; ++h) act(b, t, h);
      }
    }
  };
  each([&](int64_t b, int64_t t, int64_t h) {
    gates.set(b, t, h, 0, draw(random));
    for (int64_t i = 0; i < dv; ++i) {
      values.set(b, t, h, i, draw(random));
      gradients.set(b, t, h, i, draw(random));
    }
  });
  Array given = gradients;
  gate.values = values.view<const void*>();
  gate.gates = gates.view<const void*>();
  const int units = (dv + input_gate::kUnit<T, kAligned> - 1) / input_gate::kUnit<T, kAligned>;
  const int lanes = input_gate::lanesOf(units);
  const GateValues forward{gate, products.view<void*>()};
  emulator::run(3, input_gate::kThreads, 0, seed, [&] { input_gate::values<T, kAligned>(forward, lanes); });
  const GateGradients backward{gate, gradients.view<void*>(), dGates.view<void*>()};
  emulator::run(3, input_gate::kThreads, 0, seed, [&] { input_gate::gradients<T, kAligned>(backward, lanes); });
  size_t wrong = 0;
  each([&](int64_t b, int64_t t, int64_t h) {
    const float factor = gates.get(b, t, h, 0);
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < dv; ++i) {
      const float v = values.get(b, t, h, i), g = given.get(b, t, h, i);
      wrong += products.get(b, t, h, i) != roundedTo(type, v * factor);
      wrong += gradients.get(b, t, h, i) != roundedTo(type, g * factor);
      sum += static_cast<double>(v) * static_cast<double>(g);
      magnitude += std::abs(static_cast<double>(v) * static_cast<double>(g));
    }
    const double error = std::abs(static_cast<double>(dGates.get(b, t, h, 0)) - sum);
    CHECK(error <= (gateType == seqparBfloat16 ? 0x1p-8 * std::abs(sum) : 0) + 0x1p-23 * dv * magnitude);
  });
  CHECK(wrong == 0);
}

TEST_CASE("the input gate's kernels multiply values and gradients, and sum products") {
  const seqpar::test::Seed seed;
  for (const auto gateType : {seqparFloat32, seqparBfloat16}) {
    for (const int dv : {16, 64, 80, 272}) {
      checkKernels<Bf16, true>(seqparBfloat16, gateType, dv, seed);
      checkKernels<Fp16, true>(seqparFloat16, gateType, dv, seed);
      checkKernels<float, true>(seqparFloat32, gateType, dv, seed);
    }
    for (const int dv : {1, 16, 48}) {
      checkKernels<Bf16, false>(seqparBfloat16, gateType, dv, seed);
      checkKernels<Fp16, false>(seqparFloat16, gateType, dv, seed);
      checkKernels<float, false>(seqparFloat32, gateType, dv, seed);
    }
  }
}

}  // namespace
