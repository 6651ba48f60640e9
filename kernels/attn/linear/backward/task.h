// What the kernels of the backward pass take: args.h in the form in which a CTA reads it.
//
// Everything is linear in blocks of columns of the state and, but for the products of q and k, of rows. So a head whose
// dk or dv is above 128 is worked on as blocks of at most 128 x 128, each by its own CTAs, and what several of them
// give (dq, dk: of value blocks; dv: of key blocks) is added up afterwards.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::backward {

/// Where a gradient goes: to the caller's tensor, or as fp32 to terms that are added up later, one a block.
struct Target {
  void* data = nullptr;  ///< NULL: not wanted
  int64_t batch = 0, token = 0, head = 0, block = 0;
  int type = seqparFloat32;
  bool wide = false;  ///< units of 16 bytes of a row begin at multiples of 16 bytes; not of fp32 terms of dq, dk and dv
};

struct Task {
  int64_t tokens = 0;
  int batch = 0, heads = 0, group = 1;  ///< group: heads that share a q/k head
  int firstHead = 0, headCount = 0;
  int dk = 0, dv = 0, keyBlocks = 1, valueBlocks = 1;
  float scale = 1;
  Gate gate = Gate::None;
  int gateType = seqparFloat32;
  Input q, k, v, dOut, gates;
  const int64_t* starts = nullptr;
  int64_t startCount = 0;
  int segments = 1;
  int64_t segmentTokens = 0;

  SegmentMaps maps;            ///< the segment pass: out
  SegmentMaps before, after;   ///< the gradients
  bool apart = false;          ///< these: states are each map's own
  bool beforeIsThere = false;  ///< `before` is, when the kernel before this one begins
  const float *initial = nullptr, *finalGradient = nullptr;
  Target dq, dkOut, dvOut, dGates;
  float* dInitial = nullptr;
  char* states = nullptr;      ///< scratch of each CTA: the states before its segment's chunks
  char* decays = nullptr;      ///< sm_90, of each CTA: kDecaySumsBytes for each of its segment's chunks
  uint32_t* strong = nullptr;  ///< sm_90, of each item: its decays are too strong for the kernels of sm_90
};

constexpr int kBlock = 128;  ///< most rows or columns of a block
/// Sums of a chunk's decays of channels, as the kernels of sm_90 keep them.
constexpr int64_t kDecaySumsBytes = kChunkTokens * kBlock * 2 + kBlock * 4;

/// Warps of the CTAs that work on blocks of `dimension` rows.
constexpr int warpsOf(int dimension) {
  return dimension == kBlock ? 16 : 8;
}

/// Items of work: (sequence, head, key block, value block, segment), the last one fastest.
inline int64_t itemsOf(const Task& task) {
  return int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
}

}  // namespace seqpar::attn::backward
