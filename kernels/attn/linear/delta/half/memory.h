// Records and shared memory of the delta rule's kernels for 16-bit tensors. Compiles everywhere.
//
// A chunk's recurrence is D = U - W S, S' = diag(total) S + KE^T D, with T = (I + strict(beta KK))^-1, W = T beta KR
// and U = T beta V (section 3.2 of arXiv 2406.06484). Records have operands of products in the tensors' type; sums,
// decays, the inverse and the state that passes from chunk to chunk are fp32.
#pragma once

#include <initializer_list>

#include "kernels/arch/ptx.h"
#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::delta::half {

constexpr int kKeys = 128;    ///< most channels of a key; fewer are padded
constexpr int kColumns = 64;  ///< columns of values per step of Differentiate; others are padded to a multiple
constexpr int kBlocks = kRows / kBlock;
constexpr int kSteepParts = kKeys / 32;  ///< flags of steep channels per block
constexpr int kNearRows = kBlock * kBlocks * (kBlocks - 1) / 2;
constexpr int kKeyBytes = 2 * kRows * kKeys;     ///< of a tile of rows of keys
constexpr int kSquareBytes = 2 * kRows * kRows;  ///< of a tile with 64 columns
constexpr int kSquare = kRows + 4;               ///< stride of fp32 matrices of tokens: aligned to 16 bytes

SEQPAR_BOTH_INLINE bool supports(const Task& task) {
  return task.type != seqparFloat32 && task.dk <= kKeys;
}
SEQPAR_BOTH_INLINE int paddedColumns(const Task& task) {
  return (task.dv + kColumns - 1) / kColumns * kColumns;
}

/// Whether Retreat writes the gradients of values, and Differentiate reads them. Records then have no gradients of D.
SEQPAR_BOTH_INLINE bool retreatWritesValues(const Task& task) {
  return task.readsRows && paddedColumns(task) <= 2 * kColumns;
}
SEQPAR_BOTH_INLINE bool hasInverse(const Task& task) {
  return (task.training || task.reserves) && !retreatWritesValues(task);
}
/// Factors of tokens for Task::readsRows, kRows numbers each, of rows of keys and queries with the reciprocals of their
/// lengths: decays from the chunk's start; decays to its end; decays from its start, of queries. Then the chunk's
/// decay, and 1 if all its keys, queries and its inverse are finite, else 0.
enum RowFactor { kOfKeysIn = 0, kOfKeysOut = kRows, kOfQueries = 2 * kRows, kOfChunk = 3 * kRows };
constexpr int kRowFactors = 4 * kRows;

/// The arrays of a record. Padding is 0.
struct Record {
  // Of Prepare, as the tiles that copies fill, imageIndex():
  uint16_t *w, *kOut, *qIn;  ///< [kRows][kKeys]
  uint16_t* written;         ///< [columns][kRows]: U, transposed
  uint16_t* scores;          ///< [kRows][kRows]; 0 above the diagonal
  float* total;              ///< [kKeys]
  float* norms;              ///< [2][kRows]: factors of rows of keys and queries
  uint16_t* inverse;         ///< [kRows][kRows], an image; hasInverse()
  // With Task::readsRows, and of the above scores, norms and inverse:
  uint16_t* scaled;  ///< [kRows][kRows], an image: the inverse, its columns times betas
  float* factors;    ///< [kRowFactors], RowFactor
  // Training:
  uint16_t* values;    ///< [columns][kRows], an image: D, transposed. In place of U if Prepare writes it, without
                       ///< Task::reserves
  uint16_t* state;     ///< [columns][kKeys] before the chunk, transposed, stateIndex()
  uint16_t* dWritten;  ///< [columns][kRows], an image: the gradient of D, transposed; NULL: retreatWritesValues()
  uint16_t* dState;    ///< [columns][kKeys] after the chunk, transposed, stateIndex()
  float *sumQ, *sumK;  ///< [kRows][kKeys], of heads that share q and k

  /// The arrays of Prepare. Returns their bytes.
  SEQPAR_BOTH_INLINE int64_t placePrepared(char* memory, const Task& task) {
    Taker taker{memory};
    scaled = inverse = nullptr;
    factors = nullptr;
    if (task.readsRows) {
      w = kOut = qIn = written = nullptr;
      total = nullptr;
      scores = taker.words(kRows, kRows);
      scaled = taker.words(kRows, kRows);
      if (hasInverse(task)) inverse = taker.words(kRows, kRows);
      factors = taker.floats(kRowFactors);
      norms = taker.floats(2 * kRows);
      return taker.used;
    }
    w = taker.words(kRows, kKeys);
    kOut = taker.words(kRows, kKeys);
    qIn = taker.words(kRows, kKeys);
    written = taker.words(paddedColumns(task), kRows);
    scores = taker.words(kRows, kRows);
    total = taker.floats(kKeys);
    norms = taker.floats(2 * kRows);
    inverse = nullptr;
    if (hasInverse(task)) inverse = taker.words(kRows, kRows);
    return taker.used;
  }
  /// The others, after placePrepared(). Returns their bytes.
  SEQPAR_BOTH_INLINE int64_t placeOthers(char* memory, const Task& task) {
    const int columns = paddedColumns(task);
    Taker taker{memory};
    values = state = dWritten = dState = nullptr;
    sumQ = sumK = nullptr;
    if (!task.training) return 0;
    values = task.reserves || task.readsRows ? taker.words(columns, kRows) : written;
    state = taker.words(columns, kKeys);
    if (!retreatWritesValues(task)) dWritten = taker.words(columns, kRows);
    dState = taker.words(columns, kKeys);
    if (task.heads == task.keyHeads) return taker.used;
    sumQ = taker.floats(kRows * kKeys);
    sumK = taker.floats(kRows * kKeys);
    return taker.used;
  }

 private:
  struct Taker {
    char* memory;
    int64_t used = 0;
    SEQPAR_BOTH_INLINE char* take(int64_t bytes) {
      char* const part = memory + used;
      used += bytes;
      return part;
    }
    SEQPAR_BOTH_INLINE uint16_t* words(int rows, int width) {
      return reinterpret_cast<uint16_t*>(take(int64_t{2} * rows * width));
    }
    SEQPAR_BOTH_INLINE float* floats(int count) { return reinterpret_cast<float*>(take(int64_t{4} * count)); }
  };
};

/// Bytes of a record in Task::reserved.
SEQPAR_BOTH_INLINE int64_t reservedBytes(const Task& task) {
  Record record;
  return task.reserves ? record.placePrepared(nullptr, task) : 0;
}
/// Bytes of a record in Task::records.
SEQPAR_BOTH_INLINE int64_t recordBytes(const Task& task) {
  Record record;
  const int64_t prepared = record.placePrepared(nullptr, task);
  return (task.reserves ? 0 : prepared) + record.placeOthers(nullptr, task);
}
/// Sets where records are. After all other fields.
inline void placeRecords(Task& task) {
  Record record;
  const int64_t prepared = record.placePrepared(nullptr, task);
  task.othersBytes = recordBytes(task);
  task.preparedBytes = task.reserves ? prepared : task.othersBytes;
  char* const records = reinterpret_cast<char*>(task.records);
  task.prepared = task.reserves ? task.reserved : records;
  task.others = task.reserves ? records : records + prepared;
  if (!task.reserves) task.preparedStride = task.stride;
}
SEQPAR_BOTH_INLINE Record recordOf(const Task& task, int64_t batch, int head, int chunk) {
  Record record;
  const int64_t row = batch * task.heads + head;
  record.placePrepared(task.prepared + (row * task.preparedStride + chunk) * task.preparedBytes, task);
  record.placeOthers(task.others + (row * task.stride + chunk) * task.othersBytes, task);
  return record;
}

/// The index of an element of a tile of panels of 64 columns (SquareRows; KeyPanels<kRows>): unit u of row r of a
/// panel, 16 bytes, is at u ^ (r % 8). Only tiles with one panel have more than kRows rows.
SEQPAR_BOTH_INLINE int imageIndex(int row, int column) {
  return column / 64 * kRows * 64 + row * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
}

/// The index of an element of a record's state: images of kColumns columns of the state.
SEQPAR_BOTH_INLINE int stateIndex(int column, int channel) {
  return column / kColumns * kColumns * kKeys + imageIndex(column % kColumns, channel);
}

/// The first of the rows of near arrays for block n.
SEQPAR_BOTH_INLINE int nearRow(int n) {
  return kBlock * n * (n - 1) / 2;
}

/// Numbers in shared memory, `offset` bytes behind its start: an address that the compiler knows to be in shared
/// memory.
template <class Number>
struct Shared {
  int offset = 0;
  SEQPAR_DEVICE operator Number*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Number*>(ptx::sharedMemory() + offset);
  }
};
using Floats = Shared<float>;
using Ints = Shared<int>;

/// Takes parts of shared memory.
struct Carver {
  int used = 0;
  SEQPAR_BOTH_INLINE int take(int bytes) {
    const int offset = used;
    used += bytes;
    return offset;
  }
};

/// Decays of the tokens of a chunk in shared memory.
struct TokenMemory {
  Floats decay, in, out;  ///< [kRows]: of a token, from the chunk's start, after the token to the chunk's end
  Floats run, suffix;     ///< the same for blocks
  Floats within, totals;  ///< [kRows][kBlock] between tokens of a block; [kBlocks]
  SEQPAR_BOTH_INLINE void place(Carver& carver) {
    decay = {carver.take(4 * kRows)};
    in = {carver.take(4 * kRows)};
    out = {carver.take(4 * kRows)};
    run = {carver.take(4 * kRows)};
    suffix = {carver.take(4 * kRows)};
    within = {carver.take(4 * kRows * kBlock)};
    totals = {carver.take(4 * kBlocks)};
  }
};

/// Parts of a score's operands: decayed rows need the exponents of bf16, and fp16 has more digits.
SEQPAR_BOTH_INLINE int partsOf(int type) {
  return type == seqparBfloat16 ? 1 : 2;
}

/// Shared memory of Prepare. Tiles of 16-bit elements are offsets in bytes.
struct PrepareMemory {
  int keys, queries, values;  ///< [kRows][kKeys]
  Floats square;              ///< [kRows][kSquare]: L, then its inverse
  Floats beta, kNorm, qNorm;
  TokenMemory tokens;
  // Decays of channels, one or two parts of bf16:
  int kNear, qNear;      ///< rows decayed from the start of their block
  int kInverse;          ///< keys divided by that decay
  int near;              ///< [kNearRows][kKeys]: keys before block n decayed to its start, at row nearRow(n)
  Floats kUps, qUps;     ///< powers of 2 that make rows fit fp16
  int second;            ///< the distance of second parts from first ones
  int kIn;               ///< keys decayed from the chunk's start
  Floats totals;         ///< [kBlocks][kKeys]
  Ints steep;            ///< [kBlocks][kSteepParts] of Decays, then whether a warp has a row that does not fit fp16
  int ofKeys, ofValues;  ///< [kRows][kRows]: the inverse, left operands of W and U
  int w, u;              ///< [kRows][kKeys], [kKeys][kRows]
  Ints turn;             ///< of a CTA with Task::marks
  SEQPAR_BOTH_INLINE int place(bool ofChannels, int parts) {
    Carver carver;
    keys = carver.take(kKeyBytes);
    queries = carver.take(kKeyBytes);
    values = carver.take(kKeyBytes);
    if (ofChannels) {
      kNear = keys;  // in place
      qNear = queries;
      kInverse = values;  // which are loaded after the scores
      near = carver.take(2 * kNearRows * kKeys);
      second = carver.used;
      if (parts > 1) carver.take(carver.used);
      kIn = carver.take(kKeyBytes);
    }
    square = {carver.take(4 * kRows * kSquare)};
    beta = {carver.take(4 * kRows)};
    kNorm = {carver.take(4 * kRows)};
    qNorm = {carver.take(4 * kRows)};
    if (ofChannels) {
      totals = {carver.take(4 * kBlocks * kKeys)};
      steep = {carver.take(4 * (kBlocks * kSteepParts + kThreads / 32))};
      kUps = {carver.take(4 * kRows)};
      qUps = {carver.take(4 * kRows)};
      ofKeys = ofValues = keys;
      w = queries;
      u = near;
    } else {
      tokens.place(carver);
      ofKeys = queries;  // which are stored before
      ofValues = queries + kSquareBytes;
      w = square.offset;
      u = keys;
    }
    turn = {carver.take(16)};
    return carver.used;
  }
};
static_assert(kKeyBytes <= 4 * kRows * kSquare && 2 * kSquareBytes <= kKeyBytes);

/// Shared memory of Differentiate: two blocks of columns are in flight, then the arrays of channels replace them. Tiles
/// of 16-bit elements are offsets in bytes.
struct DifferentiateMemory {
  static constexpr int kQuarters = 4;  ///< warps of 16 tokens
  static constexpr int kHalves = 2;    ///< warps of 16 channels
  static constexpr int kStage = 3 * kSquareBytes + 2 * kKeyBytes;
  int keys, queries;  ///< [kRows][kKeys]
  int inverse;        ///< [kRows][kRows]
  int blocks;         ///< two stages, aligned to 1024 bytes
  int full;           ///< mbarriers of the stages
  int dX, dValues;    ///< [kRows][kColumns]; then gradients of scores
  Floats beta, kNorm, qNorm, betas;
  Floats terms, ends;  ///< [kQuarters][kRows]
  Floats boundary;     ///< [kHalves][kKeys]: sums over halves of the columns
  TokenMemory tokens;
  // Decays of channels:
  static constexpr int kRunStride = kKeys + 8;  ///< without bank conflicts
  Floats run, suffix;        ///< [kRows][kRunStride]: decays from the block's start, after the token to the block's end
  int kNear, qNear;          ///< rows times `run`
  int near;                  ///< as in PrepareMemory, in the tensors' type; mild decays: keys to the end of their block
  Floats totals, blockEnds;  ///< [kBlocks][kKeys]
  Floats before, after;      ///< [kBlocks][kKeys]: products of the totals of earlier blocks, of later ones
  Floats diagonal;           ///< [kRows]: of gradients of scores
  Ints ofRows, ofScores;     ///< [warps]: largest magnitudes, Magnitude::bits()
  Ints steep, zeros;  ///< [kBlocks][kSteepParts] of Decays; [kBlocks][kKeys]: bit i is set if the decay of token i is 0
  SEQPAR_BOTH_INLINE int place(bool ofChannels) {
    Carver carver;
    keys = carver.take(kKeyBytes);
    queries = carver.take(kKeyBytes);
    inverse = carver.take(kSquareBytes);
    dX = carver.take(kSquareBytes);
    dValues = carver.take(kSquareBytes);
    beta = {carver.take(4 * kRows)};
    kNorm = {carver.take(4 * kRows)};
    qNorm = {carver.take(4 * kRows)};
    betas = {carver.take(4 * kRows)};
    terms = {carver.take(4 * kQuarters * kRows)};
    ends = {carver.take(4 * kQuarters * kRows)};
    boundary = {carver.take(4 * kHalves * kKeys)};
    tokens.place(carver);
    full = carver.take(2 * 8);
    carver.used = (carver.used + 1023) / 1024 * 1024;
    blocks = carver.used;
    if (!ofChannels) {
      carver.take(2 * kStage);
      return carver.used;
    }
    kNear = carver.take(kKeyBytes);
    qNear = carver.take(kKeyBytes);
    near = carver.take(2 * kNearRows * kKeys);
    run = {carver.take(4 * kRows * kRunStride)};
    suffix = {carver.take(4 * kRows * kRunStride)};
    totals = {carver.take(4 * kBlocks * kKeys)};
    blockEnds = {carver.take(4 * kBlocks * kKeys)};
    before = {carver.take(4 * kBlocks * kKeys)};
    after = {carver.take(4 * kBlocks * kKeys)};
    zeros = {carver.take(4 * kBlocks * kKeys)};
    steep = {carver.take(4 * kBlocks * kSteepParts)};
    diagonal = {carver.take(4 * kRows)};
    ofRows = {carver.take(4 * kBlocks * kSteepParts)};
    ofScores = {carver.take(4 * kBlocks * kSteepParts)};
    return carver.used;
  }
};
static_assert(2 * DifferentiateMemory::kStage <= 2 * kKeyBytes + 2 * kNearRows * kKeys + 8 * kRows * kKeys);

SEQPAR_BOTH_INLINE int slicesOf(const Task& task, int width) {
  return task.states != nullptr ? paddedColumns(task) / width : 0;
}
SEQPAR_BOTH_INLINE int transitionSlicesOf(const Task& task, int width) {
  return task.transition != nullptr ? (task.dk + width - 1) / width : 0;
}
/// Columns of the state per CTA of Advance and Retreat: fewer if the SMs of an H100 run all CTAs at once.
SEQPAR_BOTH_INLINE int chainWidth(const Task& task) {
  constexpr int kSms = 132, kNarrow = kColumns / 2;
  const int slices = slicesOf(task, kNarrow) + transitionSlicesOf(task, kNarrow);
  return task.batch * task.heads * slices <= kSms ? kNarrow : kColumns;
}
/// Warps of a CTA with that width that share 16 columns.
SEQPAR_BOTH_INLINE constexpr int chainParts(int width) {
  return width < kColumns ? 4 : 1;
}

constexpr int kDifferentiateThreads = 512;
constexpr int kHelpers = 128;  ///< threads of a chain's CTA that are not in its chain
SEQPAR_BOTH_INLINE int threadsOf(Step step, const Task& task) {
  if (step == Step::Prepare) return kThreads;
  if (step == Step::Differentiate) return kDifferentiateThreads;
  const int width = chainWidth(task);
  return kHelpers + width / kBlock * chainParts(width) * 32;
}
SEQPAR_BOTH_INLINE int64_t ctasOf(Step step, const Task& task) {
  if (step != Step::Advance && step != Step::Retreat) return delta::blocksOf(step, task);
  const int width = chainWidth(task);
  return task.batch * task.heads * (slicesOf(task, width) + transitionSlicesOf(task, width));
}
constexpr int kChainStage = 3 * kKeyBytes + 2 * kSquareBytes + 4 * kKeys;  ///< bytes
constexpr int kChainStages = 3;
SEQPAR_BOTH_INLINE int sharedBytes(Step step, int type, bool ofChannels) {
  if (step == Step::Prepare) {
    PrepareMemory memory;
    return memory.place(ofChannels, partsOf(type));
  }
  if (step == Step::Differentiate) {
    DifferentiateMemory memory;
    return memory.place(ofChannels);
  }
  return kChainStages * kChainStage + kKeyBytes + 2 * kSquareBytes;
}

/// The largest of all steps.
inline int mostSharedBytes() {
  int most = 0;
  for (const auto step : {Step::Prepare, Step::Advance, Step::Differentiate}) {
    const int bytes = sharedBytes(step, seqparFloat16, true);
    most = bytes > most ? bytes : most;
  }
  return most;
}

/// Whether a device has kernels with Task::readsRows for a task. Only in builds with CUDA.
bool readsRows(const Task& task, int device);
/// SMs of the current device if its kernels support Task::marks; else 0. Only in builds with CUDA.
int overlappingSms(const Task& task);
/// Enqueues a step. Returns a cudaError_t. Only in builds with CUDA.
int launch(Step step, const Task& task, void* stream);

}  // namespace seqpar::attn::delta::half
