// Shared memory of pass 3, and code that both kinds of preparation share.
#pragma once

#include "kernels/attn/linear/forward_sm90/forward_chunks_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/matrix_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// TMA tiles are aligned to 1024 bytes.
constexpr int wholeTiles(int bytes) {
  return (bytes + 1023) / 1024 * 1024;
}
/// The stages that fit next to `others` bytes.
constexpr int stagesFor(int stageBytes, int others) {
  return (ptx::kSharedBytesSm90 - others) / (stageBytes + Pipeline<1>::kBarrierBytes);
}

/// The heads of an item. Plain: one, without an input gate. Gated: one with an input gate, and Pair: two, which have
/// factors of tokens (HeadFactors) that multiply values. Joined: two short ones with channel decays.
enum class Heads { Plain, Gated, Pair, Joined };

/// Count: heads, each with a tile of scores. Raises: of T.
template <int Count, bool Raises = false>
struct OutputsSharedOf {
  static constexpr bool kValuesLoaded = false;  ///< consumers read values that are not prepared
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kKeyBytes;
  static constexpr int kValues = 2 * kKeyBytes;
  static constexpr int kScores = kValues + kValueBytes;  ///< [query][key], a tile
  static constexpr int kVectors = kScores + Count * kTileBytes;
  static constexpr int kVectorBytes = 4 * Shape::kChannels;
  /// Raises: [head][query], of raiseRows(). Channel decays, before them: [4], of a warp's queries and keys.
  static constexpr int kInverses = kVectors + 6 * kVectorBytes;
  static constexpr int kPowers = kInverses + kVectorBytes;  ///< Raises: [head], see ChannelTransform
  static constexpr int kStageBytes = wholeTiles(Raises ? kPowers + 16 : kInverses);  ///< transforms define the vectors
  static constexpr int kFineBytes = (Raises ? 1 : 2) * kKeyBytes;
  static constexpr int kOthers = kConsumers * kTileBytes + kFineBytes + 2 * kVectorBytes + 16;
  static constexpr int kStages = stagesFor(kStageBytes, kOthers);
  static constexpr int kOut = kStages * kStageBytes;  ///< an output tile per consumer, being copied to device memory
  /// Channel decays: two matrices, queries and keys for the scores (see ChannelTransform; not if Raises); or, for exact
  /// chunks, the decays' logarithms in fp16. Other decays: a second pair of output tiles.
  static constexpr int kFine = kOut + kConsumers * kTileBytes;
  static constexpr int kLogs = kFine;
  static constexpr int kCarries = kFine + kFineBytes;         ///< [2][128]
  static constexpr int kExact = kCarries + 2 * kVectorBytes;  ///< [kStages]: whether a stage's chunk is exact
  static constexpr int kBarriers = kExact + 16;
  static constexpr int kBytes = kBarriers + Pipeline<kStages>::kBarrierBytes;
  static_assert(kStages >= 2 && kBytes <= ptx::kSharedBytesSm90);
  static_assert(kConsumers * kTileBytes <= kFineBytes);
};
using OutputsShared = OutputsSharedOf<1>;
/// Of T.
template <class T, int Count = 1>
using OutputsSharedFor = OutputsSharedOf<Count, Numbers<T>::kRaises>;

/// With factors of tokens: the values, scores of each head (FactorTransform), and vectors (HeadFactors). A pair has the
/// same queries and keys, and values of 64 columns each. One head has two output tiles per consumer.
template <int Count>
struct FactorShared {
  static constexpr bool kValuesLoaded = true;
  static constexpr int kQueries = OutputsShared::kQueries, kKeys = OutputsShared::kKeys,
                       kValues = OutputsShared::kValues, kScores = OutputsShared::kScores;
  static constexpr int kVectors = kScores + Count * kTileBytes;
  static constexpr int kVectorBytes = 4 * Shape::kChannels;
  static constexpr int kStageBytes = wholeTiles(kVectors + 6 * kVectorBytes);
  static constexpr int kOutBytes = (3 - Count) * kConsumers * kTileBytes;
  static constexpr int kStages = stagesFor(kStageBytes, kOutBytes);
  static constexpr int kOut = kStages * kStageBytes;
  static constexpr int kBarriers = kOut + kOutBytes;
  static constexpr int kBytes = kBarriers + Pipeline<kStages>::kBarrierBytes;
  static_assert(kStages >= 2 && kBytes <= ptx::kSharedBytesSm90);
};

/// Offset of a product's `step` along the channels of a matrix, for consumers and transforms.
SEQPAR_DEVICE int channelStep(int step) {
  return step / 4 * kTileBytes + step % 4 * kNextStepOfRows;
}

/// Transform warpgroup: zero-fills a stage from token `length` on, the item's end.
SEQPAR_DEVICE void clearOthers(char* stage, int length) {
  for (const int matrix : {OutputsShared::kQueries, OutputsShared::kKeys, OutputsShared::kValues}) {
    clearRows(stage + matrix, length);
  }
  warpgroup::fenceProxyAsync();
  ptx::barrierSync(kTransformBarrier, kGroupThreads);
}

/// Transform warpgroup: scores (+)= Q K^T, D of 64 x 64, from `Steps` steps of matrices in shared memory.
template <class T, int Steps = Shape::kSteps>
SEQPAR_DEVICE void addScores(float (&scores)[32], const char* queries, const char* keys, bool add) {
  const Matrix q = rowsOf(ptx::sharedAddress(queries)), k = rowsOf(ptx::sharedAddress(keys));
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    warpgroup::multiply<T, Terms::AlongRows, Terms::AlongRows>(scores, q + channelStep(step), k + channelStep(step),
                                                               add || step > 0);
  }
}
/// Executes the addScores() of `act`, of one or two heads, and waits for them.
template <int Count, class Act>
SEQPAR_DEVICE void makeScores(float (&scores)[Count], const Act& act) {
  warpgroup::fenceOperand(scores);
  warpgroup::arrive();
  act();
  warpgroup::commit();
  warpgroup::wait<0>();
  warpgroup::fenceOperand(scores);
}
/// scores = Q K^T of a stage.
template <class T>
SEQPAR_DEVICE void multiplyScores(float (&scores)[32], const char* stage) {
  makeScores(scores,
             [&] { addScores<T>(scores, stage + OutputsShared::kQueries, stage + OutputsShared::kKeys, false); });
}

/// Of a small range: multiplies scores of this thread's rows (queries), lane / 4 and 8 below it, by a power of 2 per
/// row, which takes the largest of the row to where T has all digits. Stores its inverse to inverses[row]. The scores
/// are multiplied by `power`, too.
template <class T, int Tiles>
SEQPAR_DEVICE void raiseRows(float (&scores)[Tiles][4], float* inverses, float power) {
  constexpr float kMost = 0x1p12F;  // the state's term is multiplied by it, too
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 2 * Tiles; ++i) largest = fmaxf(largest, fabsf(scores[i / 2][2 * row + i % 2]));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    }
    const float by = fminf(roundingScaleOf<T>(largest * power), kMost);
#pragma unroll
    for (int i = 0; i < 2 * Tiles; ++i) scores[i / 2][2 * row + i % 2] *= by * power;
    if (lane % 4 == 0) inverses[lane / 4 + 8 * row] = inversePower(by);
  }
}

/// Stores rounded scores to one of the stage's tiles; 0 for keys after the query. `power`: as for raiseRows().
template <class T, class Layout = OutputsSharedFor<T>>
SEQPAR_DEVICE void putScores(char* stage, const float (&scores)[32], int tile = 0, float power = 1,
                             int thread = static_cast<int>(threadIdx.x)) {
  const int lane = thread % 32, warp = thread / 32 % 4;
  const uint32_t at = ptx::sharedAddress(stage) + OutputsShared::kScores + tile * kTileBytes;
  const auto number = [&](int i) {
    const int query = 16 * warp + lane / 4 + 8 * (i / 2 % 2), key = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    // Assigned, not multiplied by 0: they may have overflowed.
    return key > query ? 0 : scores[i];
  };
  [[maybe_unused]] float raised[8][4];
  if constexpr (Numbers<T>::kRaises) {
#pragma unroll
    for (int i = 0; i < 32; ++i) raised[i / 4][i % 4] = number(i);
    raiseRows<T>(raised, reinterpret_cast<float*>(stage + Layout::kInverses) + tile * kChunk + 16 * warp, power);
  }
  const auto pair = [&](int i) {
    if constexpr (Numbers<T>::kRaises) return Numbers<T>::pack(raised[i / 4][i % 4], raised[i / 4][i % 4 + 1]);
    return Numbers<T>::pack(number(i), number(i + 1));
  };
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pair(4 * j + 2 * i);
    const int row = 16 * warp + lane / 8 % 2 * 8 + lane % 8, byte = 2 * (8 * j + lane / 16 * 8);
    ptx::stmatrixX4(at + swizzled(row, byte), words);
  }
}

}  // namespace seqpar::attn::forward_sm90
