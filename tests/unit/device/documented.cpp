// The wire constants that docs/GPU.md states.
#include "kernels/byte_fifo_layout.h"
#include "kernels/fifo.h"

namespace seqpar {

static_assert(sizeof(LamportPacket) == 16 && kRingPackets == 4096 && kCallPackets == 8);
static_assert(kAbsent == 0xffffffffU && kAbsentAsFloat == 0x7fffffffU && kAbsentAsHalves == 0x7fff7fffU);
static_assert(kCreditPackets == kRingPackets / 4);
static_assert(FifoLayout::kCreditStride == 64);
static_assert(ByteFifoLayout::kBlocks == 32 && ByteFifoLayout::kBlockPackets == 128);
static_assert(ByteFifoLayout::kBlockVec16s == 96 && ByteFifoLayout::kOwedBlocks == ByteFifoLayout::kBlocks / 4);
static_assert(ByteFifoLayout::kWarpFifos == 8 && ByteFifoLayout::kSlots == 2 && ByteFifoLayout::kChunk == 16 << 10);
static_assert(ByteFifoLayout::kWord == 32);

}  // namespace seqpar
