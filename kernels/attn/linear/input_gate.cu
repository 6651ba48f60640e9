#include <algorithm>

#include "kernels/attn/linear/input_gate_kernel.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn {
namespace {

template <class T, bool kAligned>
__global__ void __launch_bounds__(input_gate::kThreads)
    valuesKernel(const __grid_constant__ GateValues pass, int lanes) {
  input_gate::values<T, kAligned>(pass, lanes);
}
template <class T, bool kAligned>
__global__ void __launch_bounds__(input_gate::kThreads)
    gradientsKernel(const __grid_constant__ GateGradients pass, int lanes) {
  input_gate::gradients<T, kAligned>(pass, lanes);
}

/// Whether all rows start at multiples of 16 bytes and consist of such units.
template <class Pointer>
bool aligned(const Strided<Pointer>& tensor, int64_t size) {
  const auto fits = [&](int64_t elements) { return elements * size % 16 == 0; };
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && fits(tensor.batch) && fits(tensor.token) &&
         fits(tensor.head);
}

/// `target`: the written tensor with rows of dv. kernelOf.operator()<T, kAligned>() is the kernel.
template <class Pass, class KernelOf>
int launchRows(const Pass& pass, const Output& target, const Launch& launch, const KernelOf& kernelOf) {
  const InputGate& gate = pass.gate;
  const int64_t rows = input_gate::rowsOf(gate);
  if (rows == 0) return cudaSuccess;
  const int64_t size = gate.type == seqparFloat32 ? 4 : 2;
  const bool wide = gate.dv * size % 16 == 0 && aligned(gate.values, size) && aligned(target, size);
  const int unit = wide ? static_cast<int>(16 / size) : 1;
  const int lanes = input_gate::lanesOf((gate.dv + unit - 1) / unit), atOnce = input_gate::kThreads / lanes;
  const auto run = [&]<class T>() {
    const auto kernel = wide ? kernelOf.template operator()<T, true>() : kernelOf.template operator()<T, false>();
    return launchKernel(kernel, gridOf((rows + atOnce - 1) / atOnce, launch.ctas), input_gate::kThreads, 0,
                        launch.stream, false, pass, lanes);
  };
  if (gate.type == seqparFloat32) return run.template operator()<float>();
  return gate.type == seqparFloat16 ? run.template operator()<Fp16>() : run.template operator()<Bf16>();
}

}  // namespace

int launchGateValues(const GateValues& pass, const Launch& launch) {
  return launchRows(pass, pass.products, launch, [&]<class T, bool kAligned>() { return &valuesKernel<T, kAligned>; });
}

int launchGateGradients(const GateGradients& pass, const Launch& launch) {
  return launchRows(pass, pass.dValues, launch,
                    [&]<class T, bool kAligned>() { return &gradientsKernel<T, kAligned>; });
}

}  // namespace seqpar::attn
