// The warpgroup with the state of a head with channel decays (channel_chain_sm90.h), transposed:
// S^T = S^T decays + V^T K, 64 columns x 128 kBlocks channels. The state before a part is composed of maps of pieces.
#pragma once

#include "kernels/attn/linear/chunks/channel_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, class Memory>
class ChannelChainState {
 public:
  SEQPAR_DEVICE ChannelChainState(const ChannelChainTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// `first`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChannelItem& item, int first) {
    loadBefore(item);
    for (int number = first; number < first + item.chunks; ++number) advance(number);
    if (item.part < task_.parts - 1 || task_.to.finalState == nullptr) return;
    float* to = task_.to.finalState + item.stateOffset(task_);
    eachOfState<kBlocks>(x_, task_, item, me_, 0, [&](float number, int64_t at) { to[at] = number; });
  }

 private:
  static constexpr int kBlocks = Memory::kBlocks, kTiles8 = backward::kBlock / 8;
  static constexpr bool kHalves = kHalfDecays<typename Memory::Record>;

  SEQPAR_DEVICE void advance(int number) {
    memory_.awaitKeys(number);
    const bool forgets = memory_.decays(number).forgets != 0;
    if constexpr (kHalves) decayState<false, kBlocks>(x_, memory_.decays(number).of, me_);
    memory_.awaitRead(number);
    storeStateImage<kBlocks, Memory::kChannelRows>(memory_.image(number), me_, [&](uint32_t(&words)[4], int i) {
      backward::sm90::packTiles<T>(words, x_[2 * i / kTiles8], 2 * i % kTiles8);
    });
    const bool lost = forgets && !ptx::voteAll(isFinite<kBlocks>(x_));
    if (me_.lane == 0) memory_.lost[number % 2][me_.warpIndex] = lost ? 1.f : 0.f;
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(memory_.stored(number));
    if (forgets) {
      decayState<true, kBlocks>(x_, memory_.decays(number).of, me_);
    } else if (!kHalves) {
      decayState<false, kBlocks>(x_, memory_.decays(number).of, me_);
    }
    memory_.awaitValues(number);
    multiplyState<T, kBlocks>(x_, memory_.keys(number), memory_.values(number));
    if constexpr (kHalves) decayState<false, kBlocks>(x_, memory_.decays(number).of, me_);
    ptx::syncwarp();
    if (me_.lane != 0) return;
    ptx::mbarrierArrive(memory_.keysEmpty(number));
    ptx::mbarrierArrive(memory_.valuesEmpty(number));
  }
  /// The state before the part: from the last piece on that has forgotten the state before it.
  SEQPAR_DEVICE void loadBefore(const ChannelItem& item) {
    const int end = item.part * task_.pieces;
    int piece = end - 1;
    while (piece >= 0 && !forgets(task_.decaysOf(item, piece, Memory::kChannels))) --piece;
    if (piece >= 0) {
      eachTile<kBlocks>(x_, task_.stateOf(item, piece, Memory::kChannels), me_,
                        [](float(&tile)[4], int, const float* from) { loadTile(tile, from); });
    } else {
      SEQPAR_UNROLL
      for (auto& block : x_) backward::clear(block);
      if (task_.initial != nullptr) {
        const float* from = task_.initial + item.stateOffset(task_);
        eachOfState<kBlocks>(x_, task_, item, me_, 0, [&](float& number, int64_t at) { number = from[at]; });
      }
    }
    SEQPAR_ROLLED
    for (++piece; piece < end; ++piece) {
      decayState<true, kBlocks>(x_, task_.decaysOf(item, piece, Memory::kChannels), me_);
      eachTile<kBlocks>(x_, task_.stateOf(item, piece, Memory::kChannels), me_,
                        [](float(&tile)[4], int, const float* from) {
                          float add[4];
                          loadTile(add, from);
                          SEQPAR_UNROLL
                          for (int e = 0; e < 4; ++e) tile[e] += add[e];
                        });
    }
  }
  /// Whether all factors are 0; of a warp.
  SEQPAR_DEVICE bool forgets(const float* decays) const {
    float sum = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < Memory::kChannels / 32; ++i) sum += decays[i * 32 + me_.lane];
    return ptx::voteAll(sum == 0);
  }
  SEQPAR_DEVICE static void loadTile(float (&tile)[4], const float* from) {
    ptx::loadPair(from, tile[0], tile[1]);
    ptx::loadPair(from + 2, tile[2], tile[3]);
  }

  const ChannelChainTask& task_;
  Memory& memory_;
  Half me_;
  ChannelState<kBlocks> x_;
};

}  // namespace seqpar::attn::forward_sm90
