// The warpgroup with the state of a head of up to 80 columns in one chain (head_chain_sm90.h): S = S decay + K^T V, 128
// channels x 80 columns. Its image is transposed, as in head_chain_state_sm90.h.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kReaderFences: of images, instead of the warpgroup that stores them.
template <class T, class Memory, bool kReaderFences>
class HeadChainRows {
 public:
  SEQPAR_DEVICE HeadChainRows(const HeadChainTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// `first`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChainItem& item, int first) {
    const int chunks = item.chunks;
    loadInitial(item);
    for (int number = first; number < first + chunks; ++number) {
      storeImage(number);
      memory_.awaitFull(number);
      uint32_t keys[2][kSteps][4];
      loadKeys(keys, number);
      decay(memory_.factorsOf(number).decay);
      publishImage(number);
      const T* values = memory_.of(number).values;
      warpgroup::arrive();
      SEQPAR_UNROLL
      for (int i = 0; i < 2 * kSteps; ++i) {
        multiplyColumns<T, Terms::Rows>(x_[i % 2], keys[i % 2][i / 2], values, kTilePanelBytes, 0, kChunk, i / 2, true);
      }
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(x_[0]);
      warpgroup::fenceOperand(x_[1]);
      ptx::syncwarp();
      if (me_.lane == 0) ptx::mbarrierArrive(memory_.empty(number));
    }
    float* const to = task_.firstChunks > 0 && item.chunk == 0 ? task_.middle : task_.to.finalState;
    if (to != nullptr) storeFinal(to + item.stateOffset(task_), item);
  }

 private:
  static constexpr int kColumns = kChainColumns<2>, kTiles8 = kColumns / 8, kSteps = kChunk / 16;

  SEQPAR_DEVICE void decay(float by) {
    SEQPAR_UNROLL
    for (auto& block : x_) {
      SEQPAR_UNROLL
      for (auto& tile : block) {
        SEQPAR_UNROLL
        for (float& number : tile) number *= by;
      }
      warpgroup::fenceOperand(block);  // otherwise the compiler keeps two copies
      if (by == 0) backward::clear(block);
    }
  }
  /// This thread's keys times their factors, as A of the state's product. Keys with a factor of 0 become 0, whatever
  /// they are.
  SEQPAR_DEVICE void loadKeys(uint32_t (&keys)[2][kSteps][4], int number) const {
    const T* tile = memory_.of(number).keys;
    const auto& factors = memory_.factorsOf(number);
    const ptx::MatrixRowsAcross own{me_.lane};
    const bool little = factors.little != 0;
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      SEQPAR_UNROLL
      for (int block = 0; block < 2; ++block) {
        ptx::ldmatrixX4Trans(
            keys[block][step],
            backward::sm90::unitOf<kChunk>(tile, own.row(step * 16), block * 8 + me_.warpIndex * 2 + own.half()));
      }
      SEQPAR_UNROLL
      for (int half = 0; half < 2; ++half) {
        float low, high;
        ptx::loadPair(factors.ends + step * 16 + half * 8 + me_.c * 2, low, high);
        const uint32_t kept = little ? ~0u : (low == 0 ? 0 : 0xffffu) | (high == 0 ? 0 : 0xffff0000u);
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          uint32_t& word = keys[i / 2][step][half * 2 + i % 2];
          word = ptx::pack<T>(ptx::lowOf<T>(word) * low, ptx::highOf<T>(word) * high) & kept;
        }
      }
    }
  }
  /// Stores the state before a chunk, transposed.
  SEQPAR_DEVICE void storeImage(int number) const {
    memory_.awaitRead(number);
    const ptx::MatrixRowsAcross own{me_.lane};
    SEQPAR_UNROLL
    for (int block = 0; block < 2; ++block) {
      SEQPAR_UNROLL
      for (int i = 0; i < kTiles8 / 2; ++i) {
        T* row = backward::sm90::unitOf<kColumns>(memory_.image(number), own.row(i * 16),
                                                  block * 8 + me_.warpIndex * 2 + own.half());
        uint32_t words[4];
        backward::sm90::packTiles<T>(words, x_[block], 2 * i);
        ptx::stmatrixX4Trans(ptx::sharedAddress(row), words);
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
    for (int i = 0; i < 2 * kTiles8; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int channel = i / kTiles8 * kPanel + me_.row + e / 2 * 8, column = i % kTiles8 * 8 + me_.c * 2 + e % 2;
        if (channel < task_.dk && column < columns) {
          act(x_[i / kTiles8][i % kTiles8][e], channel * task_.dv + column);
        }
      }
    }
  }
  SEQPAR_DEVICE void loadInitial(const ChainItem& item) {
    backward::clear(x_[0]);
    backward::clear(x_[1]);
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
  float x_[2][kTiles8][4];  ///< of 64 channels each
};

}  // namespace seqpar::attn::forward_sm90
