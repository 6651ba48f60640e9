// Operators with a factor for each element, SUM, SCALAR, DIAG, between NCCL's steps. For matrices see nccl_matrix.cu.
//
// Work      a thread has kWidth elements, in steps of the grid
// Roles     all threads alike
// Tiles     1 or 4 elements
// Smem      none
// Barriers  none
// Overlap   none
#include "kernels/scan/nccl_map.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/launch.h"
#include "kernels/scan/nccl_matrix.h"
#include "kernels/vec.cuh"

namespace seqpar {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostCtas = 132 * 8;

/// Flags that are passed as a kernel argument.
constexpr std::size_t kFlagsAtOnce = 2048;
struct FlagChunk {
  std::uint8_t flags[kFlagsAtOnce];
};

unsigned ctasFor(std::size_t items) {
  return static_cast<unsigned>(std::min(kMostCtas, std::max<std::size_t>(1, (items + kThreads - 1) / kThreads)));
}

bool aligned(const void* data, seqparDataType_t type) {
  return reinterpret_cast<std::uintptr_t>(data) % (4 * elementBytes(type)) == 0;
}

/// True if each aligned group of four elements shares a factor and a head, and all buffers are aligned.
bool fitsFours(const MapShape& shape, std::size_t begin, std::size_t count, std::initializer_list<bool> buffers) {
  return shape.span % 4 == 0 && shape.headElements() % 4 == 0 && begin % 4 == 0 && count % 4 == 0 &&
         std::all_of(buffers.begin(), buffers.end(), [](bool fine) { return fine; });
}

template <int kWidth>
__global__ void hopKernel(MapShape shape, MapHop hop) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x * kWidth;
  const std::size_t skip = hop.begin - quotient(hop.begin, shape.span) * shape.span;
  const std::size_t headElements = shape.dk * shape.dv;
  for (std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth; i < hop.count; i += step) {
    bool present = hop.x.data != nullptr;
    if (present && hop.flags != nullptr) {
      present = (hop.flags[quotient(hop.begin + i, headElements)] & SEQPAR_SCAN_RESET_IN) == 0;
    }
    Vec<kWidth> before{};
    Vec<kWidth> after{};
    if (hop.s.data != nullptr) after = loadVec<kWidth>(hop.s.data, hop.s.type, i);
    if (present) {
      before = loadVec<kWidth>(hop.x.data, hop.x.type, i);
      const float c = hop.a.factors[quotient(skip + i, shape.span)];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) after.value[k] = applyFactor(c, before.value[k], after.value[k]);
    }
    if (hop.prefix != nullptr) storeVec(hop.prefix, hop.stateType, i, before);
    if (hop.total != nullptr) storeVec(hop.total, hop.stateType, i, after);
    if (hop.wire != nullptr) storeVec(hop.wire, hop.wireType, i, after);
  }
}

template <int kWidth>
__global__ void foldKernel(MapShape shape, MapFold fold) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x * kWidth;
  const std::size_t skip = fold.begin - quotient(fold.begin, shape.span) * shape.span;
  for (std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth; i < fold.count; i += step) {
    const std::size_t factor = quotient(skip + i, shape.span);
    Vec<kWidth> x{};
    bool present = fold.x.data != nullptr;
    if (present) x = loadVec<kWidth>(fold.x.data, fold.x.type, i);
    for (int q = 0; q < fold.maps; ++q) {
      if (present && fold.before != nullptr) storeVec(fold.before + q * fold.beforeStride, fold.wireType, i, x);
      const Vec<kWidth> s = loadVec<kWidth>(fold.states + q * fold.stateStride, fold.wireType, i);
      if (present) {
        const float c = fold.factors[q * fold.factorStride + static_cast<std::ptrdiff_t>(factor)];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) x.value[k] = applyFactor(c, x.value[k], s.value[k]);
      } else {
        x = s;
        present = true;
      }
    }
    if (present && fold.before != nullptr) {
      storeVec(fold.before + fold.maps * fold.beforeStride, fold.wireType, i, x);
    }
    if (fold.last != nullptr) storeVec(fold.last, seqparFloat32, i, x);
  }
}

__global__ void productKernel(const float* factors, std::ptrdiff_t stride, int maps, std::size_t count, float* out) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float product = 1.0F;
    for (int q = 0; q < maps; ++q) {
      const float factor = factors[q * stride + static_cast<std::ptrdiff_t>(i)];
      product = factor == 0.0F || product == 0.0F ? 0.0F : product * factor;
    }
    out[i] = product;
  }
}

__global__ void flagsKernel(FlagChunk chunk, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) out[i] = chunk.flags[i];
}

__global__ void factorsKernel(const float* given, seqparDecayForm_t form, const std::uint8_t* flags,
                              std::size_t perHead, std::size_t count, float* out) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float factor = given == nullptr ? 1.0F : given[i];
    if (given != nullptr && form == seqparDecayLog) factor = expf(factor);
    if (given != nullptr && form == seqparDecayLog2) factor = exp2f(factor);
    const bool forgets = flags != nullptr && (flags[i / perHead] & (SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT)) != 0;
    out[i] = forgets ? 0.0F : factor;
  }
}

}  // namespace

cudaError_t launchHop(const MapShape& shape, const MapHop& hop, cudaStream_t stream) {
  if (hop.count == 0) return cudaSuccess;
  if (shape.matrix) return launchMatrixHop(shape, hop, stream);
  if (fitsFours(shape, hop.begin, hop.count,
                {aligned(hop.x.data, hop.x.type), aligned(hop.s.data, hop.s.type), aligned(hop.prefix, hop.stateType),
                 aligned(hop.total, hop.stateType), aligned(hop.wire, hop.wireType)})) {
    return launchKernel(hopKernel<4>, {ctasFor(hop.count / 4), kThreads, 0, stream}, shape, hop);
  }
  return launchKernel(hopKernel<1>, {ctasFor(hop.count), kThreads, 0, stream}, shape, hop);
}

cudaError_t launchFold(const MapShape& shape, const MapFold& fold, cudaStream_t stream) {
  if (fold.count == 0) return cudaSuccess;
  const auto wire = [&](const void* data, std::ptrdiff_t stride) {
    return aligned(data, fold.wireType) && stride % static_cast<std::ptrdiff_t>(4 * elementBytes(fold.wireType)) == 0;
  };
  if (fitsFours(shape, fold.begin, fold.count,
                {wire(fold.states, fold.stateStride), wire(fold.before, fold.beforeStride),
                 aligned(fold.x.data, fold.x.type), aligned(fold.last, seqparFloat32)})) {
    return launchKernel(foldKernel<4>, {ctasFor(fold.count / 4), kThreads, 0, stream}, shape, fold);
  }
  return launchKernel(foldKernel<1>, {ctasFor(fold.count), kThreads, 0, stream}, shape, fold);
}

cudaError_t launchProduct(const float* factors, std::ptrdiff_t stride, int maps, std::size_t count, float* out,
                          cudaStream_t stream) {
  return launchKernel(productKernel, {ctasFor(count), kThreads, 0, stream}, factors, stride, maps, count, out);
}

cudaError_t launchFlags(const unsigned char* flags, std::size_t heads, std::uint8_t* out, cudaStream_t stream) {
  for (std::size_t begin = 0; begin < heads; begin += kFlagsAtOnce) {
    const std::size_t count = std::min(kFlagsAtOnce, heads - begin);
    FlagChunk chunk{};
    std::copy_n(flags + begin, count, chunk.flags);
    const cudaError_t result = launchKernel(flagsKernel, {1, kThreads, 0, stream}, chunk, count, out + begin);
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

cudaError_t launchFactors(const float* given, seqparDecayForm_t form, const std::uint8_t* flags, std::size_t perHead,
                          std::size_t count, float* out, cudaStream_t stream) {
  return launchKernel(factorsKernel, {ctasFor(count), kThreads, 0, stream}, given, form, flags, perHead, count, out);
}

}  // namespace seqpar
