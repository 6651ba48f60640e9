// Chunks of heads with channel decays on sm_90a, for kernels that process chunks in parallel (channel_scale_sm90.h,
// channel_states_sm90.h, channel_group_sm90.h). With L the log2-decays from the chunk's start to a token, less half of
// the chunk's, and h half of the chunk's decay:
//
//     q' = scale q 2^L    k' = k 2^-L    S' = h S    E' = h E
//
// are the operands of a layer without decays, which are only bounded if the chunk's decays are not too strong. In a
// chunk with strong decays, h is 1, q' and k' have decays from the chunk's start and to its end, and
// channel_within_sm90.h computes products of q, k and dA.
#pragma once

#include "kernels/arch/gpu_words.h"
#include "kernels/attn/linear/backward/group_memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk of a head in device memory: keys of up to 256 channels. Rows after the last token are 0. Tiles are in panels
/// of 64 channels. Products of two numbers of the record use both terms of each, so that only states and their operands
/// are rounded to T.
template <class T>
struct alignas(128) ChunkRecord {
  static constexpr int kKeyBlocks = 2, kChannels = kKeyBlocks * kBlock;
  T queries[kKeyBlocks * kTile], keys[kKeyBlocks * kTile];  ///< q' and k'
  T rests[kKeyBlocks][2][kTile];                            ///< their remainders, of a block
  T scores[2][kTilePanel];                                  ///< A and its remainder
  /// L in steps, as accumulators of a warpgroup: [block][pair of tiles][thread], words of tiles n and n + 1.
  uint32_t logs[kKeyBlocks][kBlock / 16][warpgroup::kThreads][4];
  float decays[kChannels];  ///< h; of a chunk with strong decays, its decay times -1
  float carry[kChannels];   ///< of a chunk with strong decays: its decay times the sums of the rows of S' E'

  /// Whether a value of `decays` is that of a chunk with strong decays.
  SEQPAR_DEVICE static bool isStrong(float decay) { return asBits(decay) >> 31 != 0; }
  SEQPAR_DEVICE bool isStrong() const { return isStrong(decays[0]); }

  static constexpr float kStep = 0x1p-9f, kLeastTotal = -126;  ///< of a chunk's log2-decay
  /// `log`: -63.5 to 63.5, or the chunk's decays are too strong.
  SEQPAR_DEVICE static uint32_t stepsOf(float log) { return asBits(log * (1 / kStep) + (kMagic + 0x1p15f)) & 0xffffu; }
  SEQPAR_DEVICE static float logOf(uint32_t steps) {
    return asFloat(asBits(kMagic) | steps) * kStep - (kMagic + 0x1p15f) * kStep;  // exact
  }
  SEQPAR_DEVICE static float lowOf(uint32_t words) { return logOf(words & 0xffffu); }
  SEQPAR_DEVICE static float highOf(uint32_t words) { return logOf(words >> 16); }
  /// The word of a token and channels `channel` and + 1.
  SEQPAR_DEVICE uint32_t& logsAt(int token, int channel) {
    const int n = channel % kBlock / 8, thread = token / 16 * 32 + token % 8 * 4 + channel % 8 / 2;
    return logs[channel / kBlock][n / 2][thread][n % 2 * 2 + token / 8 % 2];
  }
  /// Stores the words of tokens first + t, t % 16 < 8, and first + t + 8. `at`: logsAt(first, ...), first % 16 == 0.
  SEQPAR_DEVICE static void storeLogs(uint32_t* at, int t, uint32_t word, uint32_t next) {
    constexpr int kWords = 4;  // of a thread
    ptx::storePair(reinterpret_cast<float*>(at + (t / 16 * 32 + t % 8 * 4) * kWords), asFloat(word), asFloat(next));
  }

  /// Of A, as 16 bits.
  SEQPAR_DEVICE uint16_t* scoreAt(int query, int key) {
    return reinterpret_cast<uint16_t*>(scores[0]) + query * kPanel + (key / 8 ^ query % 8) * 8 + key % 8;
  }

 private:
  static constexpr float kMagic = 0x1p23f;  ///< the weight of its last bit is 1
};

/// A head counts as a group; a part is 64 columns of v. One segment has all tokens.
struct ChannelTask : GroupTask {
  char* records = nullptr;                      ///< ChunkRecord: [batch][heads][chunks]
  uint32_t* strong = nullptr;                   ///< not 0: a chunk's decays are strong
  bool leavesStrong = false;                    ///< then there are no results
  Visible recordsVisible = Visible::AfterWait;  ///< to the states' kernel, with `strong` and known gradients
  int pieceChunks = 0;                          ///< of maps (channel_maps_sm90.h): chunks of a piece
  int pieces = 0;                               ///< per head
  StateMaps maps;                               ///< of pieces

  SEQPAR_DEVICE int panels() const { return dv / kPanel; }
  template <class Record>
  SEQPAR_DEVICE Record& recordOf(int sequence, int head, int64_t chunk) const {
    return reinterpret_cast<Record*>(records)[(int64_t{sequence} * heads + head) * chunksOfSegment + chunk];
  }
  SEQPAR_DEVICE bool isStrong() const { return ptx::loadRelaxedGpu(strong) != 0; }
  SEQPAR_DEVICE bool isLeft() const { return leavesStrong && isStrong(); }
};

}  // namespace seqpar::attn::backward::sm90
