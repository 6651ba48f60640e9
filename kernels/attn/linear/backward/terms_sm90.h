// Terms of gradients that several heads or blocks share (Target): fp16, with a scale for each row of a warpgroup's
// columns. With decays of channels, a row's smallest elements may be below fp16's range: then the row is bf16.
#pragma once

#include "kernels/attn/linear/backward/chunk_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk from the view of consumers that write terms.
template <class T, class ChunkMemory, int kHeads = 1>
struct TermsConsumer : ChunkConsumer<T, ChunkMemory, kHeads> {
  using Base = ChunkConsumer<T, ChunkMemory, kHeads>;
  using Base::chunk, Base::item, Base::me, Base::memory, Base::task;
  using typename Base::Part;

  /// Writes terms of dq and dk, which replace q and k. A token has count() terms of each; the item's is the own()-th,
  /// offset() elements after the start of the token's head in Target. They read the item where its fields are needed,
  /// because all at once would need more registers.
  template <class Offset, class Own, class Count>
  SEQPAR_DEVICE void writeTerms(const Part& dq, const Part& dk, int64_t token, const Offset& offset, const Own& own,
                                const Count& count) const {
    int exponents[4] = {exponentOfRow(dq, 0), exponentOfRow(dq, 1), exponentOfRow(dk, 0), exponentOfRow(dk, 1)};
    const Rows rows(task.dq, item, token, offset() + item.keyBlock * kBlock, item.keys);
    storeHalves(memory.q(chunk), dq, exponents[0], exponents[1]);
    storeHalves(memory.k(chunk), dk, exponents[2], exponents[3]);
    // Lane c of a row stores the scale of the c-th of these.
    const int row = me.row + me.c % 2 * 8, exponent = me.c < 2    ? (me.c == 0 ? exponents[0] : exponents[1])
                                                      : me.c == 2 ? exponents[2]
                                                                  : exponents[3];
    if (row < rows.rows) {
      const int64_t at = (item.sequence * task.tokens + token + row) * count() + own();
      (me.c < 2 ? task.dq : task.dkOut).scales[at * scalesOf(task.dk) + item.keyBlock * (kBlock / kScaled) + me.group] =
          powerOf2(exponent - kMostOfTerms);
    }
    rows.copyBoth(task.dkOut.data, reinterpret_cast<const Fp16*>(memory.q(chunk)),
                  reinterpret_cast<const Fp16*>(memory.k(chunk)), me);
  }
  /// Writes one tensor's terms, which replace `tile`. A token has `count` terms; the item's is the `own`-th, of block
  /// `block` of its `width` columns, and `rows` has its place.
  SEQPAR_DEVICE void writeScaled(const Rows& rows, T* tile, const Part& part, int64_t token, int own, int count,
                                 int block, int width) const {
    const int exponents[2] = {exponentOfRow(part, 0), exponentOfRow(part, 1)};
    const bool wide[2] = {isWide(part, 0, exponents[0]), isWide(part, 1, exponents[1])};
    storeHalves(tile, part, exponents[0], exponents[1], wide);
    const int row = me.row + me.c % 2 * 8;
    if (me.c < 2 && row < rows.rows) {
      const int64_t at = (item.sequence * task.tokens + token + row) * count + own;
      const float scale = powerOf2((me.c == 0 ? exponents[0] : exponents[1]) - kMostOfTerms);
      rows.target.scales[at * scalesOf(width) + block * (kBlock / kScaled) + me.group] =
          (me.c == 0 ? wide[0] : wide[1]) ? kScaleOfBf16 : scale;
    }
    rows.writePut(tile, me);
  }
  /// The same for dq and dk, which replace q and k.
  SEQPAR_DEVICE void writeScaledKeys(const Rows& dqRows, const Rows& dkRows, const Part& dq, const Part& dk,
                                     int64_t token) const {
    const int own = item.head * task.valueBlocks + item.valueBlock, count = task.heads * task.valueBlocks;
    writeScaled(dqRows, memory.q(chunk), dq, token, own, count, item.keyBlock, task.dk);
    writeScaled(dkRows, memory.k(chunk), dk, token, own, count, item.keyBlock, task.dk);
  }
  /// Writes dv, or with kTerms perhaps its terms, through `tile`.
  template <bool kTerms>
  SEQPAR_DEVICE void writeValuesThrough(T* tile, const Part& dv, int64_t token) const {
    const Rows rows =
        this->rowsOf(task.dvOut, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values);
    if (kTerms && task.dvOut.scales != nullptr) {
      writeScaled(rows, tile, dv, token, item.head * task.keyBlocks + item.keyBlock, task.heads * task.keyBlocks,
                  item.valueBlock, task.dv);
    } else {
      rows.template writeThrough<T>(tile, dv, me);
    }
  }

 private:
  static constexpr int kMostOfTerms = 15;    ///< the scale of a row of terms makes its elements less than 2^15
  static constexpr int kLeastOfTerms = -17;  ///< smaller elements have fewer bits in fp16 than in bf16

  SEQPAR_DEVICE void storeHalves(T* tile, const Part& part, int exponent, int exponent8,
                                 const bool (&wide)[2] = {false, false}) const {
    const float factors[2] = {powerOf2(kMostOfTerms - exponent), powerOf2(kMostOfTerms - exponent8)};
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = part[n + i / 2] + i % 2 * 2;
        words[i] = wide[i % 2] ? ptx::pack<Bf16>(pair[0], pair[1])
                               : packHalves(pair[0] * factors[i % 2], pair[1] * factors[i % 2]);
      }
      storeTiles(tile, n, words, me);
    }
  }
  /// Whether row r, with elements below 2^exponent, has smaller ones than fp16 can represent with its scale.
  SEQPAR_DEVICE static bool isWide(const Part& part, int r, int exponent) {
    constexpr float kNone = 0x1p127f;
    const auto sizeOf = [](float x) { return x == 0 ? kNone : fabsf(x); };
    float least = kNone;  // of the elements that are not 0
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      least = fminf(least, fminf(sizeOf(part[n][r * 2]), sizeOf(part[n][r * 2 + 1])));
    }
    least = fminf(least, ptx::shflXor(least, 1));
    least = fminf(least, ptx::shflXor(least, 2));
    const int limit = exponent - kMostOfTerms + kLeastOfTerms;
    return least < powerOf2(limit < -126 ? -126 : limit);
  }
  /// An exponent of 2 above the elements of row r.
  SEQPAR_DEVICE static int exponentOfRow(const Part& part, int r) {
    constexpr int kLeast = -100;
    float most = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      most = fmaxf(most, fmaxf(fabsf(part[n][r * 2]), fabsf(part[n][r * 2 + 1])));
    }
    most = fmaxf(most, ptx::shflXor(most, 1));
    most = fmaxf(most, ptx::shflXor(most, 2));
    const int above = exponentAbove(most);
    return above < kLeast ? kLeast : above;
  }
};

}  // namespace seqpar::attn::backward::sm90
