// The parts of Prepare for decays of channels.
#pragma once

#include "kernels/attn/linear/delta/half/prepare.h"

namespace seqpar::attn::delta::half {

static_assert(kBlocks * kSteepParts + kWarps <= 32);

/// Lengths and powers of rows, and flags behind those of memory_.steep.
template <class T, bool kChannel>
SEQPAR_DEVICE void Prepare<T, kChannel>::findAllUps() const {
  const bool keysFit = findUps<T>(memory_.kUps, memory_.kNorm, keys(), task_.normalize, 1);
  const bool fit = findUps<T>(memory_.qUps, memory_.qNorm, queries(), task_.normalize, task_.scale) && keysFit;
  if (threadAgain() % 32 == 0) memory_.steep[kBlocks * kSteepParts + warp_] = fit ? 0 : 1;
}
/// Whether operands of scores are fp16.
template <class T, bool kChannel>
SEQPAR_DEVICE bool Prepare<T, kChannel>::isMild() const {
  const int lane = threadAgain() % 32;
  return kMayBeMild && ptx::voteAll(lane >= kBlocks * kSteepParts + kWarps || memory_.steep[lane] == 0);
}

/// Rows of ChannelRows, and keys to the chunk's end. Returns isMild().
template <class T, bool kChannel>
SEQPAR_DEVICE bool Prepare<T, kChannel>::decayChannels() {
  decays_.storeTotals(memory_.totals, memory_.steep);
  ptx::syncthreads();
  const bool mild = isMild();
  if (mild) {
    decayMildRows();
  } else if (decays_.template allFinite<T>(keys()) && decays_.template allFinite<T>(queries())) {
    decayRows<false>();
  } else {
    decayRows<true>();
  }
  return mild;
}
/// Where a pair of channels is in tiles of rows. Tokens t + i with t % 4 == 0 and i < 4 are at (place ^ 16 i) + 256 i.
template <class T, bool kChannel>
SEQPAR_DEVICE int Prepare<T, kChannel>::placeOf(int t, int c) {
  return t * KeyRows::kRowBytes + ((c / 8) ^ (t % 8)) * 16 + c % 8 * 2;
}
template <class T, bool kChannel>
SEQPAR_DEVICE uint32_t& Prepare<T, kChannel>::pairAt(int at) {
  return *reinterpret_cast<uint32_t*>(ptx::sharedMemory() + at);
}

/// kForgets: rows may have NaN or infinity, which factors of 0 discard.
template <class T, bool kChannel>
template <bool kForgets>
SEQPAR_DEVICE void Prepare<T, kChannel>::decayRows() {
  const int block = decays_.block(), c = decays_.channel();
  constexpr int kPart = 4, kRowBytes = KeyRows::kRowBytes;  // kPart: tokens
  const auto times = [](float factor, float x) { return kForgets ? forgetting(factor, x) : factor * x; };
  const auto put = [&](int at, float low, float high) {
    const uint32_t pair = ptx::pack<Bf16>(low, high);
    pairAt(at) = pair;
    if constexpr (kParts == 2) {
      pairAt(at + memory_.second) = ptx::pack<Bf16>(low - ptx::lowOf<Bf16>(pair), high - ptx::highOf<Bf16>(pair));
    }
  };
  const auto ends = BlockDecays::ends(memory_.totals);
  const auto &before = ends.before, &after = ends.after;
  uint32_t raw[kBlock] = {};
  float run[2] = {1, 1};
  SEQPAR_ROLLED
  for (int part = 0; part < kBlock; part += kPart) {
    const int start = placeOf(block * kBlock + part, c), image = imageIndex(block * kBlock + part, c);
    SEQPAR_UNROLL
    for (int i = 0; i < kPart; ++i) {
      const int t = block * kBlock + part + i, at = (start ^ 16 * i) + kRowBytes * i;
      const float kNorm = memory_.kNorm[t], qNorm = memory_.qNorm[t];
      const uint32_t k = pairAt(memory_.keys + at), q = pairAt(memory_.queries + at);
      raw[i] = ptx::pack<T>(kNorm * ptx::lowOf<T>(k), kNorm * ptx::highOf<T>(k));
      const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
      const float query[2] = {qNorm * ptx::lowOf<T>(q), qNorm * ptx::highOf<T>(q)};
      float inverse[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        run[e] *= decays_.of[i][e];
        inverse[e] = ptx::rcpApprox(run[e]);
      }
      put(memory_.kNear + at, times(run[0], key[0]), times(run[1], key[1]));
      put(memory_.qNear + at, times(run[0], query[0]), times(run[1], query[1]));
      put(memory_.kInverse + at, inverse[0] * key[0], inverse[1] * key[1]);
      const float in[2] = {run[0] * before[0], run[1] * before[1]};
      pairAt(memory_.kIn + at) = ptx::pack<T>(times(in[0], key[0]), times(in[1], key[1]));
      storeRounded<T>(record_.qIn + ((image ^ 8 * i) + 64 * i), times(in[0], query[0]), times(in[1], query[1]));
    }
    rotate<kPart>(decays_.of);
    rotate<kPart>(raw);
  }
  float suffix[2] = {1, 1};
  SEQPAR_ROLLED
  for (int part = kBlock; part > 0; part -= kPart) {
    rotate<kBlock - kPart>(decays_.of);
    rotate<kBlock - kPart>(raw);
    const int first = block * kBlock + part - kPart, start = placeOf(first, c), image = imageIndex(first, c);
    SEQPAR_UNROLL
    for (int i = kPart; i-- > 0;) {
      const int at = (start ^ 16 * i) + kRowBytes * i;
      const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
      storeRounded<T>(record_.kOut + ((image ^ 8 * i) + 64 * i), times(suffix[0] * after[0], key[0]),
                      times(suffix[1] * after[1], key[1]));
      SEQPAR_UNROLL
      for (int n = 1; n < kBlocks; ++n) {
        if (n > block) {
          put(memory_.near + nearRow(n) * kRowBytes + at, times(suffix[0] * ends.toStart[n][0], key[0]),
              times(suffix[1] * ends.toStart[n][1], key[1]));
        }
      }
      suffix[0] *= decays_.of[i][0];
      suffix[1] *= decays_.of[i][1];
    }
  }
}

/// The same for mild decays: those after a token are quotients of the block's.
template <class T, bool kChannel>
SEQPAR_DEVICE void Prepare<T, kChannel>::decayMildRows() {
  const int block = decays_.block(), c = decays_.channel();
  constexpr int kPart = 4, kRowBytes = KeyRows::kRowBytes;  // kPart: tokens
  const auto put = [&](int at, float low, float high) { pairAt(at) = packInRange<Fp16>(low, high); };
  auto ends = BlockDecays::ends(memory_.totals);
  const auto &before = ends.before, &after = ends.after;
  float run[2] = {1, 1}, total[2];
  balance(ends, run);
  ptx::loadPair(memory_.totals + block * kKeys + c, total[0], total[1]);
  SEQPAR_UNROLL
  for (int e = 0; e < 2; ++e) {
    total[e] *= run[e];
    SEQPAR_UNROLL
    for (int n = 1; n < kBlocks; ++n) ends.toStart[n][e] *= total[e];
  }
  const float out[2] = {after[0] * total[0], after[1] * total[1]};
  SEQPAR_ROLLED
  for (int part = 0; part < kBlock; part += kPart) {
    const int first = block * kBlock + part, start = placeOf(first, c), image = imageIndex(first, c);
    SEQPAR_UNROLL
    for (int i = 0; i < kPart; ++i) {
      const int t = first + i, at = (start ^ 16 * i) + kRowBytes * i, of = (image ^ 8 * i) + 64 * i;
      const float kNorm = memory_.kNorm[t], qNorm = memory_.qNorm[t], kUp = memory_.kUps[t], qUp = memory_.qUps[t];
      uint32_t k = pairAt(memory_.keys + at);
      const uint32_t q = pairAt(memory_.queries + at);
      k = ptx::pack<T>(kNorm * ptx::lowOf<T>(k), kNorm * ptx::highOf<T>(k));
      const float key[2] = {ptx::lowOf<T>(k), ptx::highOf<T>(k)};
      const float query[2] = {qNorm * ptx::lowOf<T>(q), qNorm * ptx::highOf<T>(q)};
      float in[2], inverse[2], divided[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        run[e] *= decays_.of[i][e];
        inverse[e] = ptx::rcpApprox(run[e]);
        in[e] = run[e] * before[e];
        divided[e] = inverse[e] * (kUp * key[e]);
      }
      put(memory_.kNear + at, run[0] * (kUp * key[0]), run[1] * (kUp * key[1]));
      put(memory_.qNear + at, run[0] * (qUp * query[0]), run[1] * (qUp * query[1]));
      put(memory_.kInverse + at, divided[0], divided[1]);
      pairAt(memory_.kIn + at) = ptx::pack<T>(in[0] * key[0], in[1] * key[1]);
      storeRounded<T>(record_.qIn + of, in[0] * query[0], in[1] * query[1]);
      storeRounded<T>(record_.kOut + of, inverse[0] * out[0] * key[0], inverse[1] * out[1] * key[1]);
      SEQPAR_UNROLL
      for (int n = 1; n < kBlocks; ++n) {
        if (n > block) {
          put(memory_.near + nearRow(n) * kRowBytes + at, ends.toStart[n][0] * divided[0],
              ends.toStart[n][1] * divided[1]);
        }
      }
    }
    rotate<kPart>(decays_.of);
  }
}

/// The powers of channels, in `run` and in decays to the starts of blocks.
template <class T, bool kChannel>
SEQPAR_DEVICE void Prepare<T, kChannel>::balance(BlockDecays::Ends& ends, float (&run)[2]) const {
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks; ++n) {
    float total[2];
    ptx::loadPair(memory_.totals + n * kKeys + decays_.channel(), total[0], total[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float up = balanceOf(total[e]), down = inverseOfPower(up);
      ends.toStart[n][e] *= kNearUp * down;
      if (n != decays_.block()) continue;
      run[e] = up;
      ends.before[e] *= down;
    }
  }
}

/// Scores of 16 tokens with 16 others, for decays of channels.
template <class T, bool kChannel>
template <bool kMild>
SEQPAR_DEVICE void Prepare<T, kChannel>::scoreBlocks() {
  using Score = std::conditional_t<kMild, Fp16, Bf16>;
  constexpr int kLower = kBlocks * (kBlocks + 1) / 2;
  SEQPAR_ROLLED
  for (int item = warp_; item < 2 * kLower; item += kWarps) {
    const bool ofKeys = item < kLower;
    const int index = item % kLower, block = (index >= 1) + (index >= 3) + (index >= 6);
    const int row = block * kBlock, other = (index - block * (block + 1) / 2) * kBlock;
    const bool isDiagonal = other == row;
    if (isDiagonal && isSteep(memory_.steep, block)) {
      if (ofKeys) scoreSteep(row);
      continue;
    }
    const KeyRows left{ofKeys ? memory_.kNear : memory_.qNear};
    const KeyRows right{isDiagonal ? memory_.kInverse : memory_.near};
    const int column = isDiagonal ? row : nearRow(block) + other;
    float c[2][4] = {};
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys; k += kBlock) {
      uint32_t a[4];
      loadLeft<true>(a, left, row, k);
      accumulate<Score, true>(c, a, right, column, k);
      if constexpr (kParts == 2) {
        accumulate<Bf16, true>(c, a, second(right), column, k);
        loadLeft<true>(a, second(left), row, k);
        accumulate<Bf16, true>(c, a, right, column, k);
      }
    }
    if (!kMild && !allFinite(c)) {
      recompute(c, row, column, [&](int i, int j) {
        float total = 0;
        for (int k = 0; k < kKeys; ++k) total += forgetting(sumOfParts(left, i, k), sumOfParts(right, j, k));
        return total;
      });
    }
    eachPair(c, row, other, [&](int i, int j, float x, float y) {
      if constexpr (kMild) {
        float ups[2];
        ptx::loadPair(memory_.kUps + j, ups[0], ups[1]);
        const float down = inverseOfPower(ofKeys ? memory_.kUps[i] : memory_.qUps[i]) * (isDiagonal ? 1 : 1 / kNearUp);
        x *= down * inverseOfPower(ups[0]);
        y *= down * inverseOfPower(ups[1]);
      }
      ofKeys ? putKeys(i, j, x, y) : putQueries(i, j, x, y);
    });
  }
}
template <class T, bool kChannel>
SEQPAR_DEVICE void Prepare<T, kChannel>::scoreSteep(int row) {
  const SteepRows<T> rows{task_, batch_, chunk_, head_, memory_.kNorm, memory_.qNorm};
  for (int j = row; j < row + kBlock; j += 2) {
    for (int i = row + threadAgain() % 32; i < j; i += 32) {
      putKeys(i, j, 0, 0);
      putQueries(i, j, 0, 0);
    }
    rows.score(j, [&](int i, float key, float query, float nextKey, float nextQuery) {
      putKeys(i, j, key, nextKey);
      putQueries(i, j, query, nextQuery);
    });
  }
}

}  // namespace seqpar::attn::delta::half
