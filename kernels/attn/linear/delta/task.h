// Arguments of the delta rule's kernels (DeltaNet, arXiv 2406.06484; Gated DeltaNet, arXiv 2412.06464; Kimi Delta
// Attention, arXiv 2510.26692). Compiles everywhere.
//
// Chunks of 64 tokens are in the WY form, as in src/attn/linear/families/delta/chunk.h. A window is a run of chunks of
// every head: Prepare writes a record for each of its (chunk, head) pairs, Advance and Retreat run states and their
// gradients through its chunks, Differentiate writes gradients of tensors. Records are reused by the next window, so
// memory does not grow with the tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::delta {

constexpr int kRows = 64;      ///< tokens of a chunk
constexpr int kBlock = 16;     ///< rows of a tile of a product, and of a block of the inverse
constexpr int kSlice = 32;     ///< columns of the state per CTA
constexpr int kThreads = 256;  ///< of every kernel
constexpr int kWarps = kThreads / 32;

/// A chunk of a rank's tokens: of one sequence.
struct Chunk {
  int64_t first = 0;
  int32_t rows = 0;
  int32_t begins = 0;    ///< 1: the first chunk of a sequence that has its start on this rank
  int64_t sequence = 0;  ///< index of `initial`
};

/// A run of a window's chunks whose chains are independent of those of the launch's other segments.
struct Segment {
  int first = 0, count = 0;
  const float* before = nullptr;  ///< [batch][heads][dk][dv]: the state before it, in Retreat the gradient behind it;
                                  ///< NULL: zeros
  float* after = nullptr;         ///< out: the state after it, in Retreat the gradient before it; NULL: not requested
  /// Out, [batch][heads][dk][dk]: the product of the chunks' matrices, in Retreat transposed. The segment then has no
  /// other results but `after`. NULL: not computed.
  float* transition = nullptr;
};
constexpr int kMostSegments = 4;  ///< of a launch

/// All passes: sizes, tensors, memory. Pointers are to device memory.
struct Task {
  int64_t batch = 1;
  int64_t tokens = 0;  ///< of the tensors, for tensor maps
  int heads = 0, keyHeads = 0, dk = 0, dv = 0;
  int width = 0;  ///< decays per token and head: 0, 1 or dk
  int type = 0, gateType = 0, betaType = 0;
  float scale = 1;
  bool normalize = false;
  bool half = false;                 ///< kernels and records of half/, for 16-bit tensors
  Input q, k, v, gates, beta, dOut;  ///< gates: logarithms of decays
  Output out, dq, dk_, dv_, dGates, dBeta;

  const Chunk* chunks = nullptr;
  int first = 0, count = 0;  ///< the window's chunks, of each batch entry
  int stride = 0;            ///< records per head, at least `count`
  bool training = false;     ///< records have the arrays of gradients
  float* records = nullptr;  ///< [batch][heads][stride] records
  /// half/: the arrays of records that Prepare writes are in `reserved`, and other steps do not change them.
  bool reserves = false;
  char* reserved = nullptr;  ///< [batch][heads][preparedStride], from the window's first chunk on
  /// half/, set by placeRecords(): the arrays that Prepare writes, and the others; bytes between those of chunks.
  char *prepared = nullptr, *others = nullptr;
  int64_t preparedBytes = 0, othersBytes = 0;
  int preparedStride = 0;          ///< as `stride`
  const float* initial = nullptr;  ///< [sequences][heads][dk][dv]; NULL: zeros
  float* dInitial = nullptr;       ///< NULL: not requested

  /// The state before the window, and out: the one after it; in Retreat the gradients, in reverse. They may be the
  /// same.
  const float* before = nullptr;  ///< [batch][heads][dk][dv]; NULL: zeros
  float* states = nullptr;        ///< NULL: not computed
  /// In and out, [batch][heads][dk][dk]: product of the chunks' matrices; in Retreat transposed. NULL: not computed.
  float* transition = nullptr;
  bool writesOut = false, keepsStates = false;  ///< not both
  /// With readsRows, in Advance and Retreat: chains of segments, if there are some, in place of those of the window.
  /// `before`, `states` and `transition` are not used then.
  Segment segments[kMostSegments];
  int segmentCount = 0;
  /// The step may start before the previous kernel of the stream ends: Prepare of half/, Advance of other records;
  /// Advance and Retreat with segments, launchFold() of states before them.
  bool overlaps = false;
  /// half/, sm_90, at most one decay per token: chains read rows of q, k and v instead of products in records.
  bool readsRows = false;
  /// half/, sm_90: Prepare marks each record that it has written, and Advance, which may start when all CTAs of Prepare
  /// have started, waits for the mark. markCount() words, zeros before Prepare. NULL: Advance starts after Prepare.
  uint32_t* marks = nullptr;
  int leftSms = 0, sms = 1;  ///< Prepare with marks: how many of the GPU's SMs it leaves to Advance
};

constexpr int kMarksBefore = 32;  ///< words before the marks: the next record; CTAs that left
SEQPAR_BOTH_INLINE int64_t markCount(const Task& task) {
  return kMarksBefore + task.batch * task.heads * task.count;
}

SEQPAR_BOTH_INLINE int padded(int dimension) {
  return (dimension + kBlock - 1) / kBlock * kBlock;
}
SEQPAR_BOTH_INLINE int slicesOf(int columns) {
  return (columns + kSlice - 1) / kSlice;
}

/// The arrays of a record, rows of padded(dk) or padded(dv) numbers. Padding and rows behind the chunk's are 0.
struct Record {
  float *k, *q;               ///< normalized and scaled
  float *kIn, *kOut, *qIn;    ///< decayed from the chunk's start, to its end
  float *keyScores, *scores;  ///< [kRows][kRows]
  float* inverse;             ///< (I + strict(beta keyScores))^-1
  float *total, *decays, *beta, *kInverse, *qInverse;
  float *near, *kNear, *qNear;  ///< decays of channels: keys to the starts of blocks 1, 2, 3; rows from their block's
  float *dOut, *residual, *written, *dX, *state, *dState, *dq, *dRow, *dColumn, *sumQ, *sumK;  ///< training

  /// Returns the numbers of a record.
  SEQPAR_BOTH_INLINE int64_t place(float* memory, const Task& task) {
    const int dk = padded(task.dk), dv = padded(task.dv), keys = kRows * dk, values = kRows * dv;
    int64_t used = 0;
    const auto take = [&](int numbers) {
      float* const part = memory + used;
      used += numbers;
      return part;
    };
    k = take(keys);
    q = take(keys);
    kIn = take(keys);
    kOut = take(keys);
    qIn = take(keys);
    keyScores = take(kRows * kRows);
    scores = take(kRows * kRows);
    inverse = take(kRows * kRows);
    total = take(dk);
    beta = take(kRows);
    kInverse = take(kRows);
    qInverse = take(kRows);
    decays = take(task.width > 1 ? keys : kRows);
    near = kNear = qNear = nullptr;
    if (task.width > 1) {
      near = take(6 * kBlock * dk);
      kNear = take(keys);
      qNear = take(keys);
    }
    dOut = residual = written = dX = state = dState = dq = dRow = dColumn = sumQ = sumK = nullptr;
    if (!task.training) return used;
    dOut = take(values);
    residual = take(values);
    written = take(values);
    dX = take(values);
    state = take(dk * dv);
    dState = take(dk * dv);
    dq = take(keys);
    dRow = take(keys);
    dColumn = take(keys);
    sumQ = take(keys);
    sumK = take(keys);
    return used;
  }
};

SEQPAR_BOTH_INLINE int64_t recordNumbers(const Task& task) {
  Record record;
  return record.place(nullptr, task);
}

/// Index of a record in Task::records.
SEQPAR_BOTH_INLINE Record recordAt(const Task& task, int64_t batch, int head, int chunk) {
  Record record;
  const int64_t numbers = recordNumbers(task);
  record.place(task.records + ((batch * task.heads + head) * task.stride + chunk) * numbers, task);
  return record;
}

/// states += transition * before, `count` matrices [dk][dv], [dk][dk] and [dk][dv]. Zeros of `transition` forget.
struct FoldTask {
  float* states = nullptr;
  const float *transition = nullptr, *before = nullptr;
  int64_t count = 0;
  int dk = 0, dv = 0;
};

enum class Step { Prepare, Advance, Retreat, Differentiate };

/// CTAs of a step, and shared memory per CTA.
SEQPAR_BOTH_INLINE int64_t blocksOf(Step step, const Task& task) {
  if (step == Step::Prepare) return task.batch * task.heads * task.count;
  if (step == Step::Differentiate) return task.batch * task.keyHeads * task.count;
  return task.batch * task.heads *
         ((task.states != nullptr ? slicesOf(task.dv) : 0) + (task.transition != nullptr ? slicesOf(task.dk) : 0));
}
constexpr int kSquare = kRows + 1;        ///< stride of matrices of tokens in shared memory
constexpr int kSliceStride = kSlice + 8;  ///< of slices: reads of a product's right operand have no bank conflicts
SEQPAR_BOTH_INLINE int sharedNumbers(Step step, const Task& task) {
  if (step == Step::Prepare) return (2 * kRows + kBlock) * kSquare;
  if (step == Step::Differentiate) return kRows * kSquare + 2 * kRows + padded(task.dk);
  return (padded(task.dk) + 2 * kRows) * kSliceStride;
}

/// Element `i` of the transposes of matrices of size x size; NULL: of identities.
SEQPAR_BOTH_INLINE float squareElement(const float* from, int64_t i, int size) {
  const int64_t matrix = i / size / size;
  const int row = static_cast<int>(i / size % size), column = static_cast<int>(i % size);
  if (from == nullptr) return row == column ? 1.0F : 0.0F;
  return from[(matrix * size + column) * size + row];
}

/// Enqueues a step. Returns a cudaError_t. Only in builds with CUDA.
int launch(Step step, const Task& task, void* stream);
/// Enqueues FoldTask's sum. Returns a cudaError_t. Only in builds with CUDA.
int launchFold(const FoldTask& task, void* stream);
/// to[b][i][j] = from[b][j][i] for `count` matrices of size x size. They do not overlap.
int launchTranspose(float* to, const float* from, int64_t count, int size, void* stream);
/// Sets `count` matrices of size x size to the identity.
int launchIdentity(float* to, int64_t count, int size, void* stream);

}  // namespace seqpar::attn::delta
