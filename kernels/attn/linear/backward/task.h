// Arguments of the backward pass's kernels: args.h in the form that a CTA reads, and a CTA's work item.
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
  float* scales = nullptr;  ///< terms are fp16, times the scale of their kScaled columns: [..][head][scalesOf(width)];
                            ///< with kScaleOfBf16 they are bf16
};

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
  Target dInputGates;  ///< of inputGateType, or terms of key blocks
  float* dInitial = nullptr;
  char* states = nullptr;      ///< scratch per CTA: the states before its segment's chunks
  char* decays = nullptr;      ///< sm_90, per CTA: kDecaySumsBytes for each of its segment's chunks
  float* valueSums = nullptr;  ///< sm_90, per CTA: kValueSums for each of its segment's chunks, see value_sums_sm90.h
  uint32_t* strong = nullptr;  ///< sm_90, per item: it is left to the kernel with kStrong
  const uint32_t* onlyIf = nullptr;  ///< sm_90, channel decays: the kernels exit if it is 0; NULL: they do not
};

constexpr int kChunk = kChunkTokens;
constexpr int kBlock = 128;  ///< most rows or columns of a block
constexpr int kPair = 2;     ///< heads of an item of the sm_90 kernels for two heads (pair_sm90.h, heads_sm90.h)
constexpr int kScaled = 64;  ///< columns of a term with one scale
constexpr float kScaleOfBf16 = -1;
/// Scales of a term with `width` columns, in blocks.
SEQPAR_BOTH_INLINE constexpr int scalesOf(int width) {
  return (width + kBlock - 1) / kBlock * (kBlock / kScaled);
}
/// Sums of a chunk's channel decays, as stored by the sm_90 kernels.
constexpr int64_t kDecaySumsBytes = kChunkTokens * kBlock * 2 + kBlock * 4;
/// Elements of a chunk's dv, as the sm_90 kernels for token decays store them between two blocks of keys.
constexpr int kValueSums = kChunkTokens * kBlock;

/// Warps of the CTAs for blocks of `dimension` rows.
constexpr int warpsOf(int dimension) {
  return dimension == kBlock ? 16 : 8;
}

/// Work items: (sequence, head or heads, value block, segment, key block), the last index fastest.
SEQPAR_BOTH_INLINE int64_t itemsOf(const Task& task) {
  const int heads = (task.headCount + task.together - 1) / task.together;
  return int64_t{task.batch} * heads * task.valueBlocks * task.segments * task.keyBlocks;
}
/// Adjacent items that one CTA processes one after the other.
inline int itemsTogether(const Task& task) {
  return task.valueSums != nullptr ? task.keyBlocks : 1;
}

/// The common part of the tasks, for the gradients of all segments.
inline Task taskOf(const LinearProblem& problem, const Segments& segments, const HeadRange& heads, const Input& dOut) {
  Task task;
  task.tokens = problem.tokens;
  task.batch = static_cast<int>(problem.batch);
  task.heads = problem.heads;
  task.group = problem.heads / problem.qkHeads;
  task.firstHead = heads.first;
  task.headCount = heads.count;
  task.dk = problem.dk;
  task.dv = problem.dv;
  task.keyBlocks = (problem.dk + kBlock - 1) / kBlock;
  task.valueBlocks = (problem.dv + kBlock - 1) / kBlock;
  task.scale = problem.scale;
  task.gate = problem.gate;
  task.gateType = problem.gateType;
  task.q = problem.q;
  task.k = problem.k;
  task.v = problem.v;
  task.dOut = dOut;
  task.gates = problem.gates;
  task.inputGates = problem.inputGates;
  task.inputGateType = problem.inputGateType;
  task.segments = allSegments(segments);
  task.mapCount = segments.count;
  task.segmentTokens = segments.tokens;
  task.spans = segments.spans;
  return task;
}

/// The same for the segment pass: only segments with maps.
inline Task mapsTaskOf(const SegmentStateGradients& pass) {
  Task task = taskOf(pass.problem, pass.segments, pass.heads, pass.dOut);
  task.segments = pass.segments.count;
  task.maps = pass.maps;
  return task;
}

/// A CTA's work item.
template <class T>
struct Item {
  int sequence, head, keyBlock, valueBlock, segment;  ///< head: the first of the item's
  int heads;                                          ///< fewer than Task::together after an odd number of heads
  int keys, values;                                   ///< of the block
  const T *q, *k, *v, *dOut;
  const char* gates;
  int64_t first, end;  ///< tokens of the segment
  int chunks;
  int order;                   ///< number of segments with earlier tokens
  int before, after;           ///< as in attn::Item
  bool continues, reachesEnd;  ///< likewise
  int64_t map;                 ///< of the segment, in StateMaps

  SEQPAR_DEVICE Item(const Task& task, int64_t index) {
    keyBlock = static_cast<int>(index % task.keyBlocks);
    index /= task.keyBlocks;
    segment = static_cast<int>(index % task.segments);
    index /= task.segments;
    valueBlock = static_cast<int>(index % task.valueBlocks);
    index /= task.valueBlocks;
    const int items = (task.headCount + task.together - 1) / task.together;
    head = task.firstHead + static_cast<int>(index % items) * task.together;
    const int left = task.firstHead + task.headCount - head;
    heads = left < task.together ? left : task.together;
    sequence = static_cast<int>(index / items);
    const int k0 = keyBlock * kBlock, v0 = valueBlock * kBlock, qkHead = head / task.group;
    keys = task.dk - k0 < kBlock ? task.dk - k0 : kBlock;
    values = task.dv - v0 < kBlock ? task.dv - v0 : kBlock;
    q = at(task.q, qkHead) + k0;
    k = at(task.k, qkHead) + k0;
    v = at(task.v, head) + v0;
    dOut = at(task.dOut, head) + v0;
    const int size = task.gateType == seqparBfloat16 ? 2 : 4;
    gates = static_cast<const char*>(task.gates.data);
    if (task.gate == Gate::Head) {
      gates += head * 4;
    } else if (task.gate != Gate::None) {
      gates += (sequence * task.gates.batch + head * task.gates.head + (task.gate == Gate::Channel ? k0 : 0)) * size;
    }
    if (task.spans != nullptr) {
      const Span& span = task.spans[segment];
      first = span.begin;
      end = span.end;
      order = span.order;
      before = span.before;
      after = span.after;
      continues = span.continues != 0;
      reachesEnd = span.reachesEnd != 0;
    } else {
      first = segment * task.segmentTokens;
      end = first + task.segmentTokens < task.tokens ? first + task.segmentTokens : task.tokens;
      order = before = segment;
      after = task.mapCount - 1 - segment;
      continues = reachesEnd = true;
    }
    chunks = end > first ? static_cast<int>((end - first + kChunk - 1) / kChunk) : 0;
    map = (int64_t{sequence} * task.heads + head) * task.mapCount + segment;
  }
  /// Whether the reverse map ignores its input.
  SEQPAR_DEVICE bool ends() const { return after == 0 && !reachesEnd; }
  /// Whether the gradient of the state before the segment is the gradient of the rank's incoming state.
  SEQPAR_DEVICE bool isFirst() const { return before == 0 && continues; }
  SEQPAR_DEVICE const T* at(const Input& input, int atHead) const {
    return static_cast<const T*>(input.data) + sequence * input.batch + atHead * input.head;
  }
  SEQPAR_DEVICE int rowsOf(int64_t token) const {
    return end - token < kChunk ? static_cast<int>(end - token) : kChunk;
  }
  /// Offset of the block's first element in a state [dk][dv].
  SEQPAR_DEVICE int64_t stateOffset(const Task& task) const {
    return int64_t{keyBlock} * kBlock * task.dv + valueBlock * kBlock;
  }
};

}  // namespace seqpar::attn::backward
