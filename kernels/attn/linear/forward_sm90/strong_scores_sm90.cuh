// Scores within blocks of 16 tokens of a chunk, for any channel decays, by the transform warpgroup of pass 3 in TF32
// (block_scores.h), from a thread's decays of four channels. The CTA has two heads; a warp has two blocks of one.
#pragma once

#include "kernels/attn/linear/block_scores.h"
#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/quads_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T>
class StrongScores {
 public:
  using Layout = OutputsSharedFor<T, 2>;
  using Decays = float4[kBlockTokens];

  SEQPAR_DEVICE StrongScores(char* shared, char* stage, const QuadLane& me)
      : stage_(stage), shared_(shared), me_(me), lane_(opaqueThread() % 32) {}

  /// All threads of the warpgroup. Queries and keys of a warp's blocks may change afterwards.
  SEQPAR_DEVICE void run(const Decays& decays) {
    setSelf();
    addLevel<8>(decays);
    addLevel<4>(decays);
    addLevel<2>(decays);
    addLevel<1>(decays);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) put(scores_[block].of, block);
  }

 private:
  static constexpr int kBlocks = 2;
  struct Quads {
    static SEQPAR_DEVICE float4 filled(float x) { return quadOf(x); }
    static SEQPAR_DEVICE float4 multiply(float4 a, float4 b) { return a * b; }
  };
  static_assert(4 * kBlocks * BlockMatrix::kBytes <= Layout::kFineBytes);

  /// Offset of the x of a warp's block.
  SEQPAR_DEVICE static int matrix(int warp, int block) {
    return Layout::kFine + (warp * kBlocks + block) * BlockMatrix::kBytes;
  }
  SEQPAR_DEVICE int warp() const {
    return me_.half * 2 + me_.tile;
  }
  SEQPAR_DEVICE int firstToken(int block) const {
    return (me_.half * kBlocks + block) * kBlockTokens;
  }
  SEQPAR_DEVICE void setSelf() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      BlockScores::Tiles products = {};
      const uint32_t at = ptx::sharedAddress(stage_) + me_.tile * kTileBytes;
#pragma unroll
      for (int step = 0; step < kTileBytes / kChunk / kNextStepOfRows; ++step) {
        const int row = swizzled(firstToken(block) + lane_ % 16, step * kNextStepOfRows + lane_ / 16 * 16);
        uint32_t queries[4], keys[4];
        ptx::ldmatrixX4(queries, at + Layout::kQueries + row);
        ptx::ldmatrixX4(keys, at + Layout::kKeys + row);
        Numbers<T>::multiply(products[0], queries, keys[0], keys[2]);
        Numbers<T>::multiply(products[1], queries, keys[1], keys[3]);
      }
      scores_[block].setSelf(products, lane_);
    }
  }
  /// The pairs of H.
  template <int H>
  SEQPAR_DEVICE void addLevel(const Decays& decays) {
    const int from = ptx::opaque(me_.offset(me_.firstToken()));
    const int to = ptx::opaque(matrix(warp(), me_.quarter % 2) + BlockMatrix::offset(0, 4 * me_.quad));
    uint2 words[4];
    int group = -1;
    eachFactor<H, Quads>(decays, [&](int t, float4 factors) {
      if (t / 4 != group) {  // loads its words together
        group = t / 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = group * 4 + i;
          const char* const tile = stage_ + ((token & H) != 0 ? Layout::kQueries : Layout::kKeys);
          words[i] = *reinterpret_cast<const uint2*>(tile + (from ^ token % 8 << 4) + token * kRowBytes);
        }
      }
      *reinterpret_cast<float4*>(shared_ + (to ^ t % 8 << 4) + t * BlockMatrix::kRowBytes) =
          factors * unpackedQuad<T>(words[t % 4]);
    });
    __syncwarp();
    BlockScores::addLevel(scores_, shared_ + matrix(warp(), 0), H, lane_);
    __syncwarp();
  }

  SEQPAR_DEVICE void put(const BlockScores::Tiles& scores, int block) const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = Numbers<T>::pack(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
    const int token = firstToken(block);
    ptx::stmatrixX4(ptx::sharedAddress(stage_) + Layout::kScores + me_.tile * kTileBytes +
                        swizzled(token + lane_ % 16, token / 16 * kNextStepOfRows + lane_ / 16 * 16),
                    words);
  }

  char *stage_, *shared_;
  const QuadLane me_;
  int lane_;
  BlockScores scores_[kBlocks];
};

}  // namespace seqpar::attn::forward_sm90
