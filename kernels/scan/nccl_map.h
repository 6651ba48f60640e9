// Kernels of All-Scan between NCCL's steps: applying and combining maps that lie in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/scan/values.h"
#include "seqpar/scan.h"

namespace seqpar {

/// What all kernels of a scan share. States are dense ranges of the elements [heads][dk][dv].
struct MapShape {
  std::size_t heads = 0, dk = 0, dv = 0;
  std::size_t span = 1;  ///< elements that share a factor; unused with matrices
  bool matrix = false;
  bool transposed = false;  ///< of matrices

  std::size_t headElements() const { return dk * dv; }
};

/// A of a block, in device memory. Elementwise: one factor for every `span` elements, from the first element's on.
/// Matrices: one factor a head, 0 where the head forgets, and [dk][dk] a head.
struct MapFactors {
  const float* factors = nullptr;
  const float* matrices = nullptr;
};

/// total = A x + s of one block; `begin` is its first element in the whole state.
struct MapHop {
  std::size_t begin = 0, count = 0;
  MapFactors a;
  Values x;                             ///< null: zeros, whatever A is
  Values s;                             ///< null: zeros
  const std::uint8_t* flags = nullptr;  ///< [heads] where x is to be taken as zeros in heads that reset; null: none do
  void* prefix = nullptr;               ///< gets x, in stateType; null: not wanted. May be s's memory
  void* total = nullptr;                ///< gets A x + s, in stateType; null: not wanted. May be s's memory
  seqparDataType_t stateType = seqparFloat32;
  void* wire = nullptr;  ///< gets A x + s, in wireType; null: not wanted
  seqparDataType_t wireType = seqparFloat32;
};

cudaError_t launchHop(const MapShape& shape, const MapHop& hop, cudaStream_t stream);

/// The maps of neighboring positions, one block of each, applied one after the other. Elementwise only.
struct MapFold {
  std::size_t begin = 0, count = 0;
  int maps = 0;
  const std::byte* states = nullptr;  ///< of type wireType, map q's at states + q * stateStride
  std::ptrdiff_t stateStride = 0;
  const float* factors = nullptr;   ///< map q's at factors + q * factorStride
  std::ptrdiff_t factorStride = 0;  ///< in floats
  Values x;                         ///< in front of map 0; null: the first map's state is the value after it
  std::byte* before = nullptr;      ///< gets what is in front of map q, in wireType, at before + q * beforeStride,
  std::ptrdiff_t beforeStride = 0;  ///< and, at q = maps, what is after the last; number 0 only if x is given
  float* last = nullptr;            ///< gets what is after the last
  seqparDataType_t wireType = seqparFloat32;
};

cudaError_t launchFold(const MapShape& shape, const MapFold& fold, cudaStream_t stream);

/// out[i] = the product over q of factors[q * stride + i]; a factor of 0 makes it 0.
cudaError_t launchProduct(const float* factors, std::ptrdiff_t stride, int maps, std::size_t count, float* out,
                          cudaStream_t stream);

/// Copies flags from host memory in kernel arguments, so that a graph keeps them.
cudaError_t launchFlags(const unsigned char* flags, std::size_t heads, std::uint8_t* out, cudaStream_t stream);

/// out[i] = the factor that given[i] stands for (1 if `given` is null), and 0 where the flags of head i / perHead reset
/// or cut; `flags` may be null.
cudaError_t launchFactors(const float* given, seqparDecayForm_t form, const std::uint8_t* flags, std::size_t perHead,
                          std::size_t count, float* out, cudaStream_t stream);

}  // namespace seqpar
