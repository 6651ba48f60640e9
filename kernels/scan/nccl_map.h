// Kernels of All-Scan between NCCL's steps: they apply and combine maps in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/scan/values.h"
#include "seqpar/scan.h"

namespace seqpar {

/// Arguments that all kernels of a scan share. States are dense ranges of the elements [heads][dk][dv].
struct MapShape {
  std::size_t heads = 0, dk = 0, dv = 0;
  std::size_t span = 1;  ///< elements that share a factor; unused with matrices
  bool matrix = false;
  bool transposed = false;  ///< of matrices

  std::size_t headElements() const { return dk * dv; }
};

/// A of a block, in device memory. Elementwise: one factor per `span` elements, starting at the first element's factor.
/// Matrices: one factor per head, 0 if the head forgets, and [dk][dk] per head.
struct MapFactors {
  const float* factors = nullptr;
  const float* matrices = nullptr;
};

/// total = A x + s of one block, a range of the whole state's elements.
struct MapHop {
  std::size_t begin = 0, count = 0;
  MapFactors a;
  Values x;                             ///< null: zeros, for any A
  Values s;                             ///< null: zeros
  const std::uint8_t* flags = nullptr;  ///< [heads], resets: x counts as zeros in heads that reset; null: none resets
  void* prefix = nullptr;               ///< receives x, in stateType; null: not written. May alias s
  void* total = nullptr;                ///< receives A x + s, in stateType; null: not written. May alias s
  seqparDataType_t stateType = seqparFloat32;
  void* wire = nullptr;  ///< receives A x + s, in wireType; null: not written
  seqparDataType_t wireType = seqparFloat32;
};

cudaError_t launchHop(const MapShape& shape, const MapHop& hop, cudaStream_t stream);

/// The maps of consecutive positions, one block each, applied in order. Elementwise only.
struct MapFold {
  std::size_t begin = 0, count = 0;
  int maps = 0;
  const std::byte* states = nullptr;  ///< of type wireType; map q is at states + q * stateStride
  std::ptrdiff_t stateStride = 0;
  const float* factors = nullptr;   ///< map q is at factors + q * factorStride
  std::ptrdiff_t factorStride = 0;  ///< in floats
  Values x;                         ///< before map 0; null: the first map's state is the value after it
  std::byte* before = nullptr;      ///< state before map q (q = 0 only if x is given) or, with q =
  std::ptrdiff_t beforeStride = 0;  ///< maps, after the last map; in wireType, at before + q * beforeStride
  float* last = nullptr;            ///< state after the last map
  seqparDataType_t wireType = seqparFloat32;
};

cudaError_t launchFold(const MapShape& shape, const MapFold& fold, cudaStream_t stream);

/// out[i] = the product over q of factors[q * stride + i]; a factor of 0 always yields 0.
cudaError_t launchProduct(const float* factors, std::ptrdiff_t stride, int maps, std::size_t count, float* out,
                          cudaStream_t stream);

/// Copies flags from host memory in kernel arguments, so that a graph retains them.
cudaError_t launchFlags(const unsigned char* flags, std::size_t heads, std::uint8_t* out, cudaStream_t stream);

/// out[i] = the factor of given[i] in the given form (1 if `given` is null); 0 if the flags of head i / perHead reset
/// or cut. `flags` may be null.
cudaError_t launchFactors(const float* given, seqparDecayForm_t form, const std::uint8_t* flags, std::size_t perHead,
                          std::size_t count, float* out, cudaStream_t stream);

}  // namespace seqpar
