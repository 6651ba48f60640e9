// Records and shared memory of the delta rule's kernels for 16-bit tensors. Compiles everywhere.
//
// A chunk's recurrence is D = U - W S, S' = diag(total) S + KE^T D, with T = (I + strict(beta KK))^-1, W = T beta KR
// and U = T beta V (section 3.2 of arXiv 2406.06484). Records have operands of products in the tensors' type; sums,
// decays, the inverse and the state that passes from chunk to chunk are fp32.
#pragma once

#include <initializer_list>

#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::delta::half {

constexpr int kKeys = 128;                ///< most channels of a key; fewer are padded
constexpr int kColumns = 64;              ///< columns of values per step of Outputs and Differentiate
constexpr int kPad = 8;                   ///< elements behind a row in shared memory: ldmatrix has no bank conflicts
constexpr int kKeyStride = kKeys + kPad;  ///< strides of rows in shared memory
constexpr int kSquareStride = kRows + kPad;
constexpr int kColumnStride = kColumns + kPad;
constexpr int kSliceRow = kSlice + kPad;
constexpr int kKeyTile = kRows * kKeyStride;  ///< elements of tiles in shared memory
constexpr int kSquareTile = kRows * kSquareStride;
constexpr int kColumnTile = kRows * kColumnStride;
constexpr int kStateTile = kKeys * kColumnStride;
constexpr int kSliceTile = kRows * kSliceRow;
constexpr int kStateSlice = kKeys * kSliceRow;
constexpr int kBlocks = kRows / kBlock;
constexpr int kNearRows = kBlock * kBlocks * (kBlocks - 1) / 2;
constexpr int kAdvanceStages = 3, kRetreatStages = 2;

SEQPAR_BOTH_INLINE bool supports(const Task& task) {
  return task.type != seqparFloat32 && task.dk <= kKeys;
}
SEQPAR_BOTH_INLINE int paddedColumns(const Task& task) {
  return (task.dv + kColumns - 1) / kColumns * kColumns;
}

/// CTAs of a head's state, with those of padding, which later steps read.
SEQPAR_BOTH_INLINE int stateSlices(const Task& task) {
  return task.states != nullptr ? paddedColumns(task) / kSlice : 0;
}

/// The arrays of a record, dense rows of kKeys, paddedColumns() or kRows elements. Padding is 0.
struct Record {
  uint16_t *w, *kOut, *qIn;  ///< [kRows][kKeys]
  uint16_t* written;         ///< [kRows][columns]: U, then D
  uint16_t* scores;          ///< [kRows][kRows]
  uint16_t* state;           ///< [kKeys][columns] before the chunk
  float* total;              ///< [kKeys]
  // Training:
  uint16_t* keyScores;  ///< [kRows][kRows]
  uint16_t* kIn;        ///< [kRows][kKeys]
  uint16_t* inverse;    ///< [kRows][kRows]
  uint16_t* dOut;       ///< [kRows][columns]
  uint16_t* dWritten;   ///< [kRows][columns]: scores^T dOut, then the gradient of D
  uint16_t* dState;     ///< [kKeys][columns] after the chunk
  float *sumQ, *sumK;   ///< [kRows][kKeys], of heads that share q and k

  /// Returns the bytes of a record.
  SEQPAR_BOTH_INLINE int64_t place(char* memory, const Task& task) {
    const int columns = paddedColumns(task);
    int64_t used = 0;
    const auto take = [&](int64_t bytes) {
      char* const part = memory + used;
      used += bytes;
      return part;
    };
    const auto words = [&](int rows, int width) {
      return reinterpret_cast<uint16_t*>(take(int64_t{2} * rows * width));
    };
    w = words(kRows, kKeys);
    kOut = words(kRows, kKeys);
    qIn = words(kRows, kKeys);
    written = words(kRows, columns);
    scores = words(kRows, kRows);
    state = words(kKeys, columns);
    total = reinterpret_cast<float*>(take(kKeys * sizeof(float)));
    keyScores = kIn = inverse = dOut = dWritten = dState = nullptr;
    sumQ = sumK = nullptr;
    if (!task.training) return used;
    keyScores = words(kRows, kRows);
    kIn = words(kRows, kKeys);
    inverse = words(kRows, kRows);
    dOut = words(kRows, columns);
    dWritten = words(kRows, columns);
    dState = words(kKeys, columns);
    if (task.heads == task.keyHeads) return used;
    sumQ = reinterpret_cast<float*>(take(kRows * kKeys * sizeof(float)));
    sumK = reinterpret_cast<float*>(take(kRows * kKeys * sizeof(float)));
    return used;
  }
};

SEQPAR_BOTH_INLINE int64_t recordBytes(const Task& task) {
  Record record;
  return record.place(nullptr, task);
}
SEQPAR_BOTH_INLINE Record recordOf(const Task& task, int64_t batch, int head, int chunk) {
  Record record;
  const int64_t bytes = record.place(nullptr, task);
  record.place(reinterpret_cast<char*>(task.records) + ((batch * task.heads + head) * task.count + chunk) * bytes,
               task);
  return record;
}

/// The first of the rows of ChannelMemory::near for block n.
SEQPAR_BOTH_INLINE int nearRow(int n) {
  return kBlock * n * (n - 1) / 2;
}
/// Rows and decays of channels in shared memory.
struct ChannelMemory {
  float *run, *suffix;      ///< [kRows][kKeys]: decays from the block's start, after the token to the block's end
  uint16_t *kNear, *qNear;  ///< tiles of kKeyTile: rows times `run`
  uint16_t* near;           ///< [kNearRows][kKeyStride]: keys before block n decayed to its start, at row nearRow(n)
  float* totals;            ///< [kBlocks][kKeys]
  int* steep;               ///< [kBlocks][4]
};

/// Takes parts of memory.
struct Carver {
  char* memory;
  int used = 0;
  template <class Pointer>
  SEQPAR_BOTH_INLINE void take(Pointer& part, int bytes) {
    part = reinterpret_cast<Pointer>(memory + used);
    used += bytes;
  }
};

/// Shared memory of Prepare.
struct PrepareMemory {
  uint16_t *keys, *queries, *values;  ///< tiles of kKeyTile
  uint16_t *scores, *inverse;         ///< tiles of kSquareTile
  float *lower, *full;                ///< [kRows][kSquare]
  float *beta, *decay, *in, *out, *kNorm, *qNorm;
  ChannelMemory channels;
  SEQPAR_BOTH_INLINE int place(char* memory, bool ofChannels) {
    Carver carver{memory};
    for (auto* tile : {&keys, &queries, &values}) carver.take(*tile, 2 * kKeyTile);
    for (auto* tile : {&scores, &inverse}) carver.take(*tile, 2 * kSquareTile);
    carver.take(lower, 4 * kRows * kSquare);
    carver.take(full, ofChannels ? 2 * kKeyTile : 4 * kRows * kSquare);
    for (auto* row : {&beta, &decay, &in, &out, &kNorm, &qNorm}) carver.take(*row, 4 * kRows);
    if (!ofChannels) return carver.used;
    channels.suffix = nullptr;
    channels.kNear = values;  // both are overwritten after the scores
    channels.qNear = reinterpret_cast<uint16_t*>(full);
    carver.take(channels.run, 4 * kRows * kKeys);
    carver.take(channels.near, 2 * kNearRows * kKeyStride);
    carver.take(channels.totals, 4 * kBlocks * kKeys);
    carver.take(channels.steep, 4 * kBlocks * 4);
    return carver.used;
  }
};
static_assert(2 * kKeyTile >= 4 * kRows * kSquare);

/// Shared memory of Differentiate: two blocks of columns are in flight, then the arrays of channels replace them.
struct DifferentiateMemory {
  static constexpr int kBlock16 = 3 * kColumnTile + 2 * kStateTile;
  uint16_t *keys, *queries, *inverse, *blocks, *dX, *dValues;
  float* between;  ///< [kRows][kSquare]
  float *beta, *decay, *in, *out, *kNorm, *qNorm, *betas;
  float *terms, *ends;  ///< [2][kRows]
  float* boundary;      ///< [kKeys]
  ChannelMemory channels;
  SEQPAR_BOTH_INLINE int place(char* memory) {
    Carver carver{memory};
    for (auto* tile : {&keys, &queries}) carver.take(*tile, 2 * kKeyTile);
    carver.take(inverse, 2 * kSquareTile);
    carver.take(blocks, 2 * 2 * kBlock16);
    for (auto* tile : {&dX, &dValues}) carver.take(*tile, 2 * kColumnTile);
    carver.take(between, 4 * kRows * kSquare);
    for (auto* row : {&beta, &decay, &in, &out, &kNorm, &qNorm, &betas}) carver.take(*row, 4 * kRows);
    for (auto* row : {&terms, &ends}) carver.take(*row, 4 * 2 * kRows);
    carver.take(boundary, 4 * kKeys);
    Carver second{reinterpret_cast<char*>(blocks)};
    second.take(channels.run, 4 * kRows * kKeys);
    second.take(channels.suffix, 4 * kRows * kKeys);
    second.take(channels.near, 2 * kNearRows * kKeyStride);
    second.take(channels.kNear, 2 * kKeyTile);
    second.take(channels.qNear, 2 * kKeyTile);
    Carver third{reinterpret_cast<char*>(between)};  // only for decays of tokens
    third.take(channels.totals, 4 * kBlocks * kKeys);
    third.take(channels.steep, 4 * kBlocks * 4);
    third.take(partialEnds, 4 * kBlocks * kKeys);
    return carver.used;
  }
  float* partialEnds;  ///< [kBlocks][kKeys]
};
static_assert(8 * kRows * kKeys + 2 * kNearRows * kKeyStride + 4 * kKeyTile <= 4 * DifferentiateMemory::kBlock16);
static_assert(kSquareTile == kColumnTile);  // dX and dValues, then gradients of scores

constexpr int kAdvanceStage = 2 * (2 * kKeyTile + kSliceTile) + 4 * kKeys;      ///< bytes
constexpr int kRetreatStage = 2 * (3 * kKeyTile + 2 * kSliceTile) + 4 * kKeys;  ///< bytes

SEQPAR_BOTH_INLINE int64_t ctasOf(Step step, const Task& task) {
  if (step == Step::Outputs) return task.batch * task.heads * task.count * (paddedColumns(task) / kColumns);
  if (step == Step::Advance || step == Step::Retreat) {
    return task.batch * task.heads * (stateSlices(task) + (task.transition != nullptr ? slicesOf(task.dk) : 0));
  }
  return delta::blocksOf(step, task);
}
SEQPAR_BOTH_INLINE int sharedBytes(Step step, bool ofChannels) {
  switch (step) {
    case Step::Prepare: {
      PrepareMemory memory;
      return memory.place(nullptr, ofChannels);
    }
    case Step::Advance:
      return kAdvanceStages * kAdvanceStage + 2 * (kStateSlice + kSliceTile);
    case Step::Outputs:
      return 2 * (kKeyTile + kSquareTile + kStateTile + kColumnTile);
    case Step::Retreat:
      return kRetreatStages * kRetreatStage + 2 * (kStateSlice + kSliceTile);
    default: {
      DifferentiateMemory memory;
      return memory.place(nullptr);
    }
  }
}

/// The largest of all steps.
inline int mostSharedBytes() {
  int most = 0;
  for (const auto step : {Step::Prepare, Step::Advance, Step::Outputs, Step::Retreat, Step::Differentiate}) {
    most = sharedBytes(step, true) > most ? sharedBytes(step, true) : most;
  }
  return most;
}

/// Enqueues a step. Returns a cudaError_t. Only in builds with CUDA.
int launch(Step step, const Task& task, void* stream);

}  // namespace seqpar::attn::delta::half
