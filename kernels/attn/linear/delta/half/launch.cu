// The launches of the delta rule's kernels for 16-bit tensors.
#include "kernels/attn/linear/delta/half/advance.h"
#include "kernels/attn/linear/delta/half/differentiate_mild.h"
#include "kernels/attn/linear/delta/half/differentiate_sums.h"
#include "kernels/attn/linear/delta/half/differentiate_tokens.h"
#include "kernels/attn/linear/delta/half/memory_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_channels.h"
#include "kernels/attn/linear/delta/half/retreat.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T, bool kChannel>
__global__ void __launch_bounds__(kThreads, kChannel ? ptx::kIsBf16<T> ? 2 : 1 : 3)
    prepareKernel(const __grid_constant__ Task task) {
  Prepare<T, kChannel>::run(task);
}
template <class T, int kGroups>
__global__ void __launch_bounds__(kGroups* chainParts(kGroups* kBlock) * 32 + kHelpers)
    advanceKernel(const __grid_constant__ Task task) {
  Advance<T, kGroups>::run(task);
}
template <class T, int kGroups>
__global__ void __launch_bounds__(kGroups* chainParts(kGroups* kBlock) * 32 + kHelpers)
    retreatKernel(const __grid_constant__ Task task) {
  Retreat<T, kGroups>::run(task);
}
template <class T, bool kChannel>
__global__ void __launch_bounds__(kDifferentiateThreads) differentiateKernel(const __grid_constant__ Task task) {
  Differentiate<T, kChannel>::run(task);
}

template <class T>
void (*kernelOf(Step step, const Task& task))(Task) {
  const bool ofChannels = task.width > 1, isWide = chainWidth(task) == kColumns;
  switch (step) {
    case Step::Prepare:
      return ofChannels ? prepareKernel<T, true> : prepareKernel<T, false>;
    case Step::Advance:
      return isWide ? advanceKernel<T, 4> : advanceKernel<T, 2>;
    case Step::Retreat:
      return isWide ? retreatKernel<T, 4> : retreatKernel<T, 2>;
    case Step::Differentiate:
      return ofChannels ? differentiateKernel<T, true> : differentiateKernel<T, false>;
  }
  return nullptr;
}

}  // namespace

bool readsRows([[maybe_unused]] const Task& task, [[maybe_unused]] int device) {
#ifdef SEQPAR_SM90
  int major = 0, minor = 0;
  return mayReadRows(task) &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
#else
  return false;
#endif
}
int overlappingSms([[maybe_unused]] const Task& task) {
  int device = 0, sms = 0;
#ifdef SEQPAR_SM90
  if (!mayMark(task) || !hasWgmma() || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
#endif
  return sms;
}
int launch(Step step, const Task& task, void* stream) {
#ifdef SEQPAR_SM90
  if (hasSm90(step, task) && hasWgmma()) return launchSm90(step, task, stream);
#endif
  const int64_t blocks = ctasOf(step, task);
  if (blocks == 0) return cudaSuccess;
  const auto kernel = task.type == seqparBfloat16 ? kernelOf<Bf16>(step, task) : kernelOf<Fp16>(step, task);
  return launchKernel(kernel, gridOf(blocks, 0), threadsOf(step, task), sharedBytes(step, task.type, task.width > 1),
                      stream, task.overlaps && step == Step::Prepare, task);
}

}  // namespace seqpar::attn::delta::half
