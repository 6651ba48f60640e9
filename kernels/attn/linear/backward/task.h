// Arguments of the backward pass's kernels: args.h in the form that a CTA reads.
//
// The pass is linear in blocks of columns of the state and, except for the products of q and k, of rows. A head with dk
// or dv above 128 is therefore processed as blocks of at most 128 x 128 by separate CTAs, and the results of several
// blocks (dq, dk: of value blocks; dv: of key blocks) are added afterwards.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::backward {

/// Destination of a gradient: the caller's tensor, or fp32 terms that are added later, one per block.
struct Target {
  void* data = nullptr;  ///< NULL: not written
  int64_t batch = 0, token = 0, head = 0, block = 0;
  int type = seqparFloat32;
  bool wide = false;        ///< 16-byte units of a row are aligned; unused for fp32 terms of dq, dk and dv
  float* scales = nullptr;  ///< terms are fp16, times the scale of their kScaled columns: [..][head][width / kScaled]
};

constexpr int kScaled = 64;  ///< columns of a term with one scale

struct Task {
  int64_t tokens = 0;
  int batch = 0, heads = 0, group = 1;  ///< group: heads that share a q/k head
  int firstHead = 0, headCount = 0;
  int together = 1;  ///< heads per item: 1 or kPair
  int dk = 0, dv = 0, keyBlocks = 1, valueBlocks = 1;
  float scale = 1;
  Gate gate = Gate::None;
  int gateType = seqparFloat32;
  Input q, k, v, dOut, gates;
  Input inputGates;  ///< as in LinearProblem; only the sm_90 kernels for token decays read them
  int inputGateType = seqparFloat32;
  int segments = 1;  ///< to process, starting at the first
  int mapCount = 1;  ///< Segments::count
  int64_t segmentTokens = 0;
  const Span* spans = nullptr;

  StateMaps maps;               ///< the segment pass: out
  StateMaps before, after;      ///< the gradients
  Maps content = Maps::Prefix;  ///< of these
  Visible beforeVisible = Visible::AfterWait;
  const float *initial = nullptr, *finalGradient = nullptr;
  Target dq, dkOut, dvOut, dGates;
  Target dInputGates;  ///< of inputGateType
  float* dInitial = nullptr;
  char* states = nullptr;      ///< scratch per CTA: the states before its segment's chunks
  char* decays = nullptr;      ///< sm_90, per CTA: kDecaySumsBytes for each of its segment's chunks
  uint32_t* strong = nullptr;  ///< sm_90, per item: its decays are too strong for the sm_90 kernels
};

constexpr int kBlock = 128;  ///< most rows or columns of a block
constexpr int kPair = 2;     ///< heads of an item of the sm_90 kernels for pairs (pair_sm90.h)
/// Sums of a chunk's channel decays, as stored by the sm_90 kernels.
constexpr int64_t kDecaySumsBytes = kChunkTokens * kBlock * 2 + kBlock * 4;

/// Warps of the CTAs for blocks of `dimension` rows.
constexpr int warpsOf(int dimension) {
  return dimension == kBlock ? 16 : 8;
}

/// Work items: (sequence, head or heads, key block, value block, segment), the last index fastest.
SEQPAR_BOTH_INLINE int64_t itemsOf(const Task& task) {
  return int64_t{task.batch} * (task.headCount / task.together) * task.keyBlocks * task.valueBlocks * task.segments;
}

}  // namespace seqpar::attn::backward
