// The warpgroup with the state of a head in one chain (head_chain_sm90.h, wide_chain_sm90.h), transposed:
// S^T = S^T decay + V^T K, 64 columns x 128 channels, or two blocks of these.
#pragma once

#include <type_traits>

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kReaderFences: of images, instead of the warpgroup that stores them.
template <class T, class Memory, bool kReaderFences>
class HeadChainState {
 public:
  SEQPAR_DEVICE HeadChainState(const HeadChainTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// `firstNumber`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChainItem& item, int firstNumber) {
    const int chunks = item.chunks, end = firstNumber + chunks;
    loadInitial(item);
    Values next;
    if (chunks > 0) loadValues(next, firstNumber);
    for (int number = firstNumber; number < end; ++number) {
      storeImage(number);
      uint32_t values[kSteps][4];
      round(values, next);
      decay(memory_.factorsOf(number).decay);
      publishImage(number);
      warpgroup::arrive();
      SEQPAR_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        SEQPAR_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          warpgroup::multiplyStep<T, Terms::Rows>(x_[block], values[step],
                                                  Operand{memory_.of(number).keys + block * kTile, kTilePanelBytes},
                                                  kChunk, step, true);
        }
      }
      warpgroup::commit();
      if (number + 1 < end) loadValues(next, number + 1);
      warpgroup::wait<0>();
      fenceState();
      if constexpr (kRounds) keepUntilRead(values);
      ptx::syncwarp();
      if (me_.lane == 0) ptx::mbarrierArrive(memory_.empty(number));
    }
    const bool first = task_.firstChunks > 0 && item.chunk == 0;
    float* const to = first ? task_.middle : task_.to.finalState;
    if (to != nullptr) storeFinal(to + item.stateOffset(task_), item);
    if (first) keepImage(task_.template imageOf<kChannels * kPanel, T>(item));
  }

 private:
  static constexpr int kBlocks = (Memory::kKeyPanels + 1) / 2, kTiles8 = Memory::kKeyPanels * 8 / kBlocks,
                       kSteps = kChunk / 16, kChannels = Memory::kKeyPanels * kPanel;
  static constexpr bool kRounds = kBlocks > 1;  ///< registers do not suffice for values before they are rounded
  /// A of the state's product, two values a word; or before they are rounded.
  using Values = std::conditional_t<kRounds, uint32_t[kSteps * 4], float[kSteps * 8]>;

  SEQPAR_DEVICE static void round(uint32_t (&words)[kSteps][4], const Values& values) {
    SEQPAR_UNROLL
    for (int i = 0; i < kSteps * 4; ++i) {
      if constexpr (kRounds) {
        words[i / 4][i % 4] = values[i];
      } else {
        words[i / 4][i % 4] = ptx::pack<T>(values[2 * i], values[2 * i + 1]);
      }
    }
  }
  /// After the product that reads them in registers: otherwise the compiler assigns `next` of loadValues() to these.
  SEQPAR_DEVICE static void keepUntilRead(uint32_t (&words)[kSteps][4]) {
    SEQPAR_UNROLL
    for (auto& step : words) {
      SEQPAR_UNROLL
      for (uint32_t& word : step) word = static_cast<uint32_t>(ptx::opaque(static_cast<int>(word)));
    }
  }
  SEQPAR_DEVICE void fenceState() {
    SEQPAR_UNROLL
    for (auto& block : x_) warpgroup::fenceOperand(block);
  }
  SEQPAR_DEVICE void clear() {
    SEQPAR_UNROLL
    for (auto& block : x_) backward::clear(block);
  }
  SEQPAR_DEVICE void decay(float by) {
    SEQPAR_UNROLL
    for (auto& block : x_) {
      SEQPAR_UNROLL
      for (auto& tile : block) {
        SEQPAR_UNROLL
        for (float& number : tile) number *= by;
      }
    }
    fenceState();  // otherwise the compiler keeps two copies
    if (by == 0) clear();
  }
  /// Waits for the chunk, and loads this thread's values times their factors. Values with a factor of 0 become 0,
  /// whatever they are.
  SEQPAR_DEVICE void loadValues(Values& values, int number) const {
    memory_.awaitFull(number);
    const T* tile = memory_.of(number).values;
    const auto& factors = memory_.factorsOf(number);
    const ptx::MatrixRowsAcross own{me_.lane};
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t words[4];
      ptx::ldmatrixX4Trans(words,
                           backward::sm90::unitOf<kChunk>(tile, own.row(step * 16), me_.warpIndex * 2 + own.half()));
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::loadPair(factors.ends + step * 16 + i / 2 * 8 + me_.c * 2, low, high);
        if constexpr (kRounds) {
          values[step * 4 + i] = ptx::pack<T>(ptx::lowOf<T>(words[i]) * low, ptx::highOf<T>(words[i]) * high);
        } else {
          values[step * 8 + 2 * i] = ptx::lowOf<T>(words[i]) * low;
          values[step * 8 + 2 * i + 1] = ptx::highOf<T>(words[i]) * high;
        }
      }
    }
    if (factors.little != 0) return;
    SEQPAR_UNROLL
    for (int i = 0; i < kSteps * 8; i += 2) {
      float low, high;
      ptx::loadPair(factors.ends + i / 4 * 8 + me_.c * 2, low, high);
      if constexpr (kRounds) {
        values[i / 2] &= (low == 0 ? 0 : 0xffffu) | (high == 0 ? 0 : 0xffff0000u);
      } else {
        if (low == 0) values[i] = 0;
        if (high == 0) values[i + 1] = 0;
      }
    }
  }
  /// Stores the state before a chunk.
  SEQPAR_DEVICE void storeImage(int number) const {
    memory_.awaitRead(number);
    const ptx::MatrixRows own = me_.matrixRows();
    const ptx::MatrixRowsAcross across{me_.lane};
    SEQPAR_UNROLL
    for (int i = 0; i < kBlocks * kTiles8 / 2; ++i) {
      uint32_t words[4];
      backward::sm90::packTiles<T>(words, x_[2 * i / kTiles8], 2 * i % kTiles8);
      if constexpr (Memory::kChannelRows) {
        T* row = backward::sm90::unitOf<kChannels>(memory_.image(number), across.row(i * 16),
                                                   me_.warpIndex * 2 + across.half());
        ptx::stmatrixX4Trans(ptx::sharedAddress(row), words);
      } else {
        ptx::stmatrixX4(
            backward::sm90::unitOf<kChunk>(memory_.image(number), own.row(me_.warpIndex * 16), 2 * i + own.half()),
            words);
      }
    }
  }
  /// Stores S^T rounded, as an image in device memory.
  SEQPAR_DEVICE void keepImage(T* image) const {
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks * kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float(&own)[4] = x_[n / kTiles8][n % kTiles8];
        T* const at = backward::sm90::unitOf<kChunk>(image, me_.row + r * 8, n) + me_.c * 2;
        *reinterpret_cast<uint32_t*>(at) = ptx::pack<T>(own[2 * r], own[2 * r + 1]);
      }
    }
  }
  /// Outputs wait for it.
  SEQPAR_DEVICE void publishImage(int number) const {
    if constexpr (!kReaderFences) warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(memory_.stored(number));
  }
  /// Calls act(element, its offset in the item's [dk][dv]) for the valid elements.
  template <class Act>
  SEQPAR_DEVICE void each(const ChainItem& item, const Act& act) {
    const int columns = task_.dv - item.column;
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks * kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int channel = n * 8 + me_.c * 2 + e % 2, column = me_.row + e / 2 * 8;
        if (channel < task_.dk && column < columns) act(x_[n / kTiles8][n % kTiles8][e], channel * task_.dv + column);
      }
    }
  }
  SEQPAR_DEVICE void loadInitial(const ChainItem& item) {
    clear();
    if (task_.initial == nullptr || item.chunk > 0) return;
    const float* from = task_.initial + item.stateOffset(task_);
    each(item, [&](float& number, int offset) { number = from[offset]; });
  }
  SEQPAR_DEVICE void storeFinal(float* to, const ChainItem& item) {
    each(item, [&](float& number, int offset) { to[offset] = number; });
  }

  const HeadChainTask& task_;
  Memory& memory_;
  Half me_;
  float x_[kBlocks][kTiles8][4];
};

}  // namespace seqpar::attn::forward_sm90
