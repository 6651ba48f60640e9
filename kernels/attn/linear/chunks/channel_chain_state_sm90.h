// The warpgroup with the state of a head with channel decays (channel_chain_sm90.h), transposed:
// S^T = S^T decays + V^T K, 64 columns x 128 kBlocks channels.
#pragma once

#include "kernels/attn/linear/chunks/channel_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, class Memory>
class ChannelChainState {
 public:
  SEQPAR_DEVICE ChannelChainState(const ChannelChainTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// `first`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChannelItem& item, int first) {
    SEQPAR_UNROLL
    for (auto& block : x_) backward::clear(block);
    if (item.part == 0 && task_.initial != nullptr) {
      const float* from = task_.initial + item.stateOffset(task_);
      eachOfState<kBlocks>(x_, task_, item, me_, [&](float& number, int, int64_t at) { number = from[at]; });
    }
    for (int number = first; number < first + item.chunks; ++number) advance(number);
    if (task_.parts > 1) {
      eachTile<kBlocks>(x_, task_.partStateOf(item, item.part, Memory::kChannels), me_,
                        [](const float(&tile)[4], int, float* to) {
                          ptx::storePair(to, tile[0], tile[1]);
                          ptx::storePair(to + 2, tile[2], tile[3]);
                        });
    } else if (task_.to.finalState != nullptr) {
      float* to = task_.to.finalState + item.stateOffset(task_);
      eachOfState<kBlocks>(x_, task_, item, me_, [&](float number, int, int64_t at) { to[at] = number; });
    }
  }

 private:
  static constexpr int kBlocks = Memory::kBlocks, kTiles8 = backward::kBlock / 8, kSteps = kChunk / 16;

  SEQPAR_DEVICE void advance(int number) {
    memory_.awaitKeys(number);
    const bool forgets = memory_.decays(number).forgets != 0;
    memory_.awaitRead(number);
    storeStateImage<kBlocks>(memory_.image(number), me_, [&](uint32_t(&words)[4], int i) {
      backward::sm90::packTiles<T>(words, x_[2 * i / kTiles8], 2 * i % kTiles8);
    });
    const bool lost = forgets && !ptx::voteAll(isFinite<kBlocks>(x_));
    if (me_.lane == 0) memory_.lost[number % 2][me_.warpIndex] = lost ? 1.f : 0.f;
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(memory_.stored(number));
    if (forgets) {
      decay<true>(memory_.decays(number).of);
    } else {
      decay<false>(memory_.decays(number).of);
    }
    memory_.awaitValues(number);
    fence();
    warpgroup::arrive();
    const warpgroup::Matrix values = warpgroup::matrixOf(Operand{memory_.values(number), kTilePanelBytes});
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      SEQPAR_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const Operand keys{memory_.keys(number) + block * kTile, kTilePanelBytes};
        warpgroup::multiply<T, Terms::Rows, Terms::Rows>(
            x_[block], values + warpgroup::stepOf<Terms::Rows>(kChunk, step),
            warpgroup::matrixOf(keys) + warpgroup::stepOf<Terms::Rows>(kChunk, step), true);
      }
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    fence();
    ptx::syncwarp();
    if (me_.lane != 0) return;
    ptx::mbarrierArrive(memory_.keysEmpty(number));
    ptx::mbarrierArrive(memory_.valuesEmpty(number));
  }
  SEQPAR_DEVICE void fence() {
    SEQPAR_UNROLL
    for (auto& block : x_) warpgroup::fenceOperand(block);
  }
  /// kForgets: factors may be 0, which discard NaN and infinity.
  template <bool kForgets>
  SEQPAR_DEVICE void decay(const float* decays) {
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks * kTiles8; ++n) {
      float by[2];
      ptx::loadPair(decays + n * 8 + me_.c * 2, by[0], by[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& number = x_[n / kTiles8][n % kTiles8][e];
        number = kForgets ? backward::times(by[e % 2], number) : by[e % 2] * number;
      }
    }
  }

  const ChannelChainTask& task_;
  Memory& memory_;
  Half me_;
  ChannelState<kBlocks> x_;
};

}  // namespace seqpar::attn::forward_sm90
