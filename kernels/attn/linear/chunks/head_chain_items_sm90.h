// The items of a CTA of the kernels for heads in one chain (head_chain_sm90.h, wide_chain_sm90.h), and the states that
// they leave for the backward.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// Calls act(item, running number of its first chunk) for the CTA's items. Of divided heads, each of the first CTAs
/// has a first part, and the others take turns at second parts.
template <int kPanels, class Act>
SEQPAR_DEVICE void eachChain(const HeadChainTask& task, const Act& act) {
  const int chunks = task.chunks(), block = ptx::block();
  const int64_t chains = chainsOf<kPanels>(task);
  const bool divided = task.firstChunks > 0, second = divided && block >= chains;
  const int64_t ofFirst = second ? chains : 0;
  int first = 0;
  for (int64_t index = block - ofFirst; index < chains; index += ptx::blocks() - ofFirst) {
    ChainItem item = ChainItem::at<kPanels>(task, index);
    item.chunk = second ? task.firstChunks : 0;
    item.chunks = second ? chunks - task.firstChunks : divided ? task.firstChunks : chunks;
    act(item, first);
    first += item.chunks;
  }
}
/// One warp: HeadChainTask::saved, of an item.
template <int kColumns>
SEQPAR_DEVICE void saveInitial(const HeadChainTask& task, const ChainItem& item, int lane) {
  constexpr int kChannels = 16;  // divide dk; their loads are in flight together
  const int64_t at = item.stateOffset(task);
  const int left = task.dv - item.column, columns = left < kColumns ? left : kColumns;
  for (int first = 0; first < task.dk; first += kChannels) {
    for (int column = lane; column < columns; column += 32) {
      const int64_t offset = at + int64_t{first} * task.dv + column;
      float numbers[kChannels];
      SEQPAR_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        numbers[i] = task.initial == nullptr ? 0 : task.initial[offset + int64_t{i} * task.dv];
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kChannels; ++i) task.saved[offset + int64_t{i} * task.dv] = numbers[i];
    }
  }
}
/// One thread: copies the images of an item's states to ChunkStates::states. kReaderFences: as in HeadChainState.
template <class T, bool kReaderFences, class Memory>
SEQPAR_DEVICE void keepImages(const HeadChainTask& task, const ChainItem& item, Memory& memory, int first) {
  constexpr int kBlocks = (Memory::kKeyPanels + 1) / 2, kBytes = int{sizeof(memory.images[0])} / kBlocks,
                kElements = kBytes / int{sizeof(T)};
  for (int step = 0; step < item.chunks; ++step) {
    const int number = first + step;
    memory.awaitStored(number);
    if constexpr (kReaderFences) warpgroup::fenceProxyAsync();
    SEQPAR_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      T* const to = static_cast<T*>(task.to.states) +
                    task.to.panelAt(task, item.sequence, item.head, block, item.column / kPanel, item.chunk + step);
      ptx::cpAsyncBulkStore(to, memory.image(number) + block * kElements, kBytes);
    }
    ptx::cpAsyncBulkCommitGroup();
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArrive(memory.read(number));
  }
}
/// One warp: what a call keeps, for all items of the CTA. kKeeps: with images.
template <class T, int kPanels, bool kReaderFences, bool kKeeps, class Memory>
SEQPAR_DEVICE void keepChains(const HeadChainTask& task, Memory& memory, int lane) {
  const bool saves = task.saved != nullptr;
  if (!kKeeps && !saves) return;
  eachChain<kPanels>(task, [&](const ChainItem& item, int first) {
    if (saves && item.chunk == 0) saveInitial<kChainColumns<kPanels>>(task, item, lane);
    if constexpr (kKeeps) {
      if (lane == 0) keepImages<T, kReaderFences>(task, item, memory, first);
      ptx::syncwarp();
    }
  });
  if (kKeeps && lane == 0) ptx::cpAsyncBulkWaitGroup();
}

}  // namespace seqpar::attn::forward_sm90
