// Shared memory of the delta rule's kernels for 16-bit tensors on sm_90. Compiles everywhere.
#pragma once

#include "kernels/attn/linear/delta/half/memory.h"

namespace seqpar::attn::delta::half {

constexpr int kThreadsSm90 = 256;  ///< of these kernels

/// Shared memory of PrepareSm90. Tiles of 16-bit elements are offsets in bytes, aligned to 1024.
struct PrepareSm90Memory {
  static constexpr int kCtas = 4;
  int keys, queries;  ///< [2][kRows][64]; then scores, an image, and SplitInverse::images
  Floats square;      ///< [kRows][kSquare]: L, then its inverse
  Floats beta, kNorm, qNorm;
  Ints finite;  ///< of each warp: 1 if its rows are, else 0
  TokenMemory tokens;
  SEQPAR_BOTH_INLINE int place() {
    Carver carver;
    keys = carver.take(kKeyBytes);
    queries = carver.take(kKeyBytes);
    square = {carver.take(4 * kRows * kSquare)};
    beta = {carver.take(4 * kRows)};
    kNorm = {carver.take(4 * kRows)};
    qNorm = {carver.take(4 * kRows)};
    finite = {carver.take(4 * kWarps)};
    tokens.place(carver);
    return carver.used;
  }
  SEQPAR_BOTH_INLINE static int bytes() {
    PrepareSm90Memory memory{};
    return memory.place();
  }
};

/// Shared memory of DifferentiateSm90. Tiles of 16-bit elements are offsets in bytes, aligned to 1024: panels of 64
/// columns (kernels/arch/warpgroup.h). Two CTAs per SM.
struct DifferentiateSm90Memory {
  static constexpr int kCtas = 2;
  static constexpr int kMostColumns = 2 * kColumns;             ///< of values
  static constexpr int kStep = 32, kStage = 2 * kKeyBytes / 2;  ///< columns of a stage, and its bytes
  static constexpr int kBlockBytes = 3 * kSquareBytes;          ///< between blocks of columns, with decays of tokens
  /// Two blocks of columns: [kColumns][kRows] dD, then [kRows][kColumns]; D; [kRows][kColumns]. With decays of tokens,
  /// gradients of values are in place of dX.
  int dX, written, dOut;
  int inverse;  ///< [kRows][kRows]; then the gradients of scores
  int ofKeys;   ///< [kRows][kRows]: the gradients of scores of keys
  int stages;   ///< two: [2][kStep][64] of the state and of its gradient; then rows of keys, queries()
  Floats beta, kNorm, qNorm;
  Floats diagonal;                ///< [kRows]: of the gradients of scores of keys, before decays
  Floats ofQueryRows, ofKeyRows;  ///< [2][kRows]: sums over the channels of a warpgroup
  int full;                       ///< mbarriers: of both stages, and of values and the inverse
  // Decays of tokens, and without decays:
  Floats terms;           ///< [2][kRows]: as ofKeyRows
  Floats boundary, ends;  ///< [8]: sums of warps
  TokenMemory tokens;
  // Decays of channels, of half of the channels: kHalf of each warpgroup. Arrays of tokens replace those of values.
  static constexpr int kHalf = 32, kWidth = 2 * kHalf, kRunStride = kWidth + 8;  ///< without bank conflicts
  static constexpr int kParts = kRows / 8;                                       ///< of eight tokens
  Floats run;                ///< [kRows][kRunStride]: decays from the block's start; then terms of gradients of decays
  int kEnd;                  ///< [kRows][kWidth]: keys decayed to the end of their block
  int kNear, qNear;          ///< [kRows][kWidth]: rows times `run`
  Floats parts;              ///< [kParts][kWidth]: products of decays
  Ints zeros;                ///< [kParts][kWidth]: bit i is set if the decay of token i is 0
  Floats totals, after;      ///< [kBlocks][kWidth]: of blocks, and the product of those of later blocks
  Floats blockEnds, blocks;  ///< [kBlocks][kWidth]: sums over the tokens of a block
  Floats sums;               ///< [kRows][2 * kBlock]: over pairs of tokens
  Ints steep;                ///< [kBlocks]
  Floats boundaries;         ///< [8][kKeys]: sums of warps, for all channels
  SEQPAR_BOTH_INLINE int place(bool ofChannels) {
    Carver carver;
    if (ofChannels) {
      dX = carver.take(2 * kSquareBytes);
      written = carver.take(2 * kSquareBytes);
      dOut = carver.take(2 * kSquareBytes);
    } else {
      dX = carver.take(2 * kBlockBytes);
      written = dX + kSquareBytes;
      dOut = written + kSquareBytes;
    }
    inverse = carver.take(kSquareBytes);
    ofKeys = carver.take(kSquareBytes);
    stages = carver.take(2 * kStage);
    beta = {carver.take(4 * kRows)};
    kNorm = {carver.take(4 * kRows)};
    qNorm = {carver.take(4 * kRows)};
    diagonal = {carver.take(4 * kRows)};
    ofQueryRows = {carver.take(4 * 2 * kRows)};
    ofKeyRows = {carver.take(4 * 2 * kRows)};
    full = carver.take(4 * 8);
    if (!ofChannels) {
      terms = {carver.take(4 * 2 * kRows)};
      boundary = {carver.take(4 * 8)};
      ends = {carver.take(4 * 8)};
      tokens.place(carver);
      return carver.used;
    }
    Carver values;
    run = {values.take(4 * kRows * kRunStride)};
    kEnd = values.take(kSquareBytes);
    kNear = values.take(kSquareBytes);
    qNear = values.take(kSquareBytes);
    parts = {values.take(4 * kParts * kWidth)};
    zeros = {values.take(4 * kParts * kWidth)};
    totals = {values.take(4 * kBlocks * kWidth)};
    after = {values.take(4 * kBlocks * kWidth)};
    blockEnds = {carver.take(4 * kBlocks * kWidth)};
    blocks = {carver.take(4 * kBlocks * kWidth)};
    sums = {carver.take(4 * kRows * 2 * kBlock)};
    steep = {carver.take(4 * kBlocks)};
    boundaries = {carver.take(4 * 8 * kKeys)};
    return carver.used;
  }
  /// early: in place of a block of columns and of the first stage.
  SEQPAR_BOTH_INLINE int keys(bool early) const { return early ? dX : stages; }
  SEQPAR_BOTH_INLINE int queries(bool early) const { return early ? stages : stages + kStage; }
  SEQPAR_BOTH_INLINE static int bytes(bool ofChannels) {
    DifferentiateSm90Memory memory{};
    return memory.place(ofChannels);
  }
};
static_assert(4 * kRows * DifferentiateSm90Memory::kRunStride % 1024 == 0);
static_assert(4 * kRows * DifferentiateSm90Memory::kRunStride + 3 * kSquareBytes +
                  4 * (2 * DifferentiateSm90Memory::kParts + 2 * kBlocks) * DifferentiateSm90Memory::kWidth <=
              6 * kSquareBytes);

/// Shared memory of AdvanceSm90 and RetreatSm90: byte offsets; those of tiles are multiples of 1024.
struct ChainSm90Memory {
  static constexpr int kStages = 3, kStage = 3 * kKeyBytes + 2 * kSquareBytes;  ///< and bytes of a stage
  static constexpr int kState = kStages * kStage;                               ///< [columns][kKeys], rounded
  static constexpr int kValues = kState + kKeyBytes;                            ///< [columns][kRows]: D or dD
  static constexpr int kOut = kValues + kSquareBytes;                           ///< [kRows][columns]
  static constexpr int kTotals = kOut + kSquareBytes;                           ///< [kStages][kKeys]
  static constexpr int kBarriers = kTotals + kStages * 4 * kKeys;               ///< [3][kStages]
  static constexpr int kKept = kBarriers + 3 * kStages * 8;                     ///< one more, with Task::readsRows
  static constexpr int kBegins = kKept + 8;                                     ///< [kStages]: Chunk::begins
  static constexpr int kBytes = kBegins + 4 * kStages;
  static constexpr int kAdvanceHelpers = 64, kRetreatHelpers = 128, kCopiers = 64;  ///< threads
  SEQPAR_BOTH_INLINE static constexpr int threads(int helpers) { return 128 + helpers + 32; }
};
static_assert(ChainSm90Memory::kBytes <= ptx::kSharedBytesSm90);

SEQPAR_BOTH_INLINE constexpr bool isChain(Step step) {
  return step == Step::Advance || step == Step::Retreat;
}
/// Most channels of a key for which DifferentiateSm90 with decays of channels takes less time than Differentiate.
constexpr int kMostDecays = 64;
/// Whether the last step is DifferentiateSm90.
SEQPAR_BOTH_INLINE bool hasDifferentiateSm90(const Task& task) {
  return task.width <= kMostDecays && paddedColumns(task) <= DifferentiateSm90Memory::kMostColumns;
}
/// Whether it is Differentiate with products by warpgroups.
SEQPAR_BOTH_INLINE bool isWide(Step step, const Task& task) {
  return step == Step::Differentiate && task.width > 1 && !hasDifferentiateSm90(task);
}
/// Whether a step has a kernel for sm_90.
SEQPAR_BOTH_INLINE bool hasSm90(Step step, const Task& task) {
  if (isChain(step)) return true;
  if (step == Step::Prepare) return task.readsRows || task.marks != nullptr;
  return hasDifferentiateSm90(task) || isWide(step, task);
}
SEQPAR_BOTH_INLINE constexpr int threadsOfSm90(Step step) {
  if (step == Step::Advance) return ChainSm90Memory::threads(ChainSm90Memory::kAdvanceHelpers);
  if (step == Step::Retreat) return ChainSm90Memory::threads(ChainSm90Memory::kRetreatHelpers);
  return kThreadsSm90;
}
/// With Task::readsRows.
SEQPAR_BOTH_INLINE constexpr int threadsOfSm90Rows(Step step) {
  return isChain(step) ? ChainSm90Memory::threads(ChainSm90Memory::kCopiers) : kThreadsSm90;
}
SEQPAR_BOTH_INLINE int threadsOfSm90(Step step, const Task& task) {
  if (task.readsRows && step != Step::Differentiate) return threadsOfSm90Rows(step);
  return isWide(step, task) ? kDifferentiateThreads : threadsOfSm90(step);
}
constexpr int kTurnsCtas = 2;  ///< per SM: of Prepare with marks
/// Whether kernels for sm_90 support Task::readsRows.
SEQPAR_BOTH_INLINE bool mayReadRows(const Task& task) {
  return supports(task) && task.width <= 1;
}
/// Whether Prepare and Advance may have marks: Task::marks.
SEQPAR_BOTH_INLINE bool mayMark(const Task& task) {
  return supports(task) && task.width > 1 && task.type == seqparBfloat16;
}
/// Slices of a segment's states, and of its transition.
SEQPAR_BOTH_INLINE int stateSlices(const Task& task) {
  return paddedColumns(task) / kColumns;
}
SEQPAR_BOTH_INLINE int transitionSlices(const Task& task, const Segment& segment) {
  return segment.transition != nullptr ? (task.dk + kColumns - 1) / kColumns : 0;
}
SEQPAR_BOTH_INLINE int64_t ctasOf(const Task& task, const Segment& segment) {
  return task.batch * task.heads * (stateSlices(task) + transitionSlices(task, segment));
}
SEQPAR_BOTH_INLINE int64_t ctasOfSm90(Step step, const Task& task) {
  if (step == Step::Prepare && task.marks != nullptr) {
    const int64_t records = ctasOf(step, task), most = int64_t{kTurnsCtas} * task.sms;
    return records < most ? records : most;
  }
  if (!isChain(step)) return ctasOf(step, task);
  if (task.segmentCount > 0) {
    int64_t ctas = 0;
    for (int i = 0; i < task.segmentCount; ++i) ctas += ctasOf(task, task.segments[i]);
    return ctas;
  }
  return task.batch * task.heads * (slicesOf(task, kColumns) + transitionSlicesOf(task, kColumns));
}
SEQPAR_BOTH_INLINE int sharedBytesSm90(Step step, const Task& task) {
  if (step == Step::Prepare && task.width > 1) return sharedBytes(step, task.type, true);
  if (isChain(step)) return ChainSm90Memory::kBytes;
  if (isWide(step, task)) return sharedBytes(step, task.type, true);
  return step == Step::Prepare ? PrepareSm90Memory::bytes() : DifferentiateSm90Memory::bytes(task.width > 1);
}

/// Enqueues such a step, on a device of compute capability 9.0. Returns a cudaError_t. Only in builds for sm_90a.
int launchSm90(Step step, const Task& task, void* stream);
/// The same, except Differentiate, with Task::readsRows.
int launchRowsSm90(Step step, const Task& task, void* stream);
/// The same for Prepare and Advance with marks.
int launchMarkedSm90(Step step, const Task& task, void* stream);

}  // namespace seqpar::attn::delta::half
