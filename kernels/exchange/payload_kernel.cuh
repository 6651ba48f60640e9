// Strings between their pieces and plain memory, on one GPU: what NCCL sends, and what is combined later.
#pragma once

#include "exchange/pieces.h"

namespace seqpar::device {

constexpr int kStringThreads = 512;
constexpr int kMostStrings = 64;

/// A string and the memory, aligned to 16, where it lies or shall lie in one piece.
struct StringCopy {
  StringArg string;
  std::byte* memory;
};

template <int kInline>
struct StringArgs {
  StringCopy copies[kMostStrings];
  int count = 0;
  const PieceArg* far = nullptr;  ///< all pieces, if they are not inline
  PieceArg near[kInline];

  __device__ const PieceArg* pieces() const { return far != nullptr ? far : near; }
};

/// Lane l of each string is CTA l's.
template <bool kGather, int kInline>
__global__ void __launch_bounds__(kStringThreads) stringKernel(const __grid_constant__ StringArgs<kInline> args) {
  for (int i = 0; i < args.count; ++i) {
    const StringCopy& copy = args.copies[i];
    const Part part = partOf(copy.string, blockIdx.x);
    if (part.begin >= part.end) continue;
    copyString<kGather>(args.pieces(), copy.string, part, copy.memory + part.begin, threadIdx.x, blockDim.x);
  }
}

}  // namespace seqpar::device
