// The features with which every algorithm of softmax attention is tested.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/plan/registry.h"
#include "softmax_case.h"

namespace seqpar::attn::test {

/// A feature, as its change of a problem of any size. tokensOfRanks, if used, has an entry for each rank.
struct Feature {
  const char* name;
  std::function<void(SoftmaxSpec&, std::mt19937_64&)> apply;
};

inline int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

inline const std::vector<Feature>& features() {
  static const std::vector<Feature> all{
      {"full", [](SoftmaxSpec&, std::mt19937_64&) {}},
      {"causal", [](SoftmaxSpec& s, std::mt19937_64&) { s.mask = seqparAttnCausal; }},
      {"window",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.mask = static_cast<int>(random() % 2);
         s.windowLeft = draw(random, 0, s.tokens / 2);
         if (random() % 2 == 0) s.windowRight = draw(random, 0, s.tokens / 3);
       }},
      {"packed",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.batch = 1;
         s.mask = static_cast<int>(random() % 2);
         s.bounds = {0, s.tokens};
         for (int i = 0; i < 4; ++i) s.bounds.push_back(draw(random, 0, s.tokens));
         std::sort(s.bounds.begin(), s.bounds.end());
       }},
      {"gqa",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.heads = 6;
         s.kvHeads = 2;
         s.mask = seqparAttnCausal;
       }},
      {"mqa",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.heads = 3;
         s.kvHeads = 1;
       }},
      {"softcap",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.softcap = 1.5f;
         s.mask = seqparAttnCausal;
       }},
      {"sinks",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.sinks = true;
         s.mask = seqparAttnCausal;
       }},
      {"cross",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.kvTokens = draw(random, 1, 2 * s.tokens);
         s.mask = static_cast<int>(random() % 2);
       }},
      {"bf16", [](SoftmaxSpec& s, std::mt19937_64&) { s.type = seqparBfloat16; }},
      {"fp16",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.type = seqparFloat16;
         s.mask = seqparAttnCausal;
       }},
      {"bhsd", [](SoftmaxSpec& s, std::mt19937_64&) { s.headsFirst = true; }},
      {"dims",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.headDim = 5;
         s.valueDim = 9;
       }},
      {"layout",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.layoutKind = static_cast<int>(random() % 3);
         s.stripe = draw(random, 1, 5);
         s.mask = static_cast<int>(random() % 2);
         if (random() % 2 == 0) s.windowLeft = draw(random, 0, s.tokens);
       }},
      {"lengths",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         for (auto& length : s.tokensOfRanks) length = std::max<int64_t>(0, draw(random, -4, 21));
         s.tokens = std::accumulate(s.tokensOfRanks.begin(), s.tokensOfRanks.end(), int64_t{0});
         s.mask = static_cast<int>(random() % 2);
       }},
      {"few tokens",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.tokens = draw(random, 0, 4);
         s.mask = static_cast<int>(random() % 2);
         s.sinks = random() % 2 == 0;
       }},
      {"more heads",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.kvHeads = draw(random, 2, 5);
         s.heads = s.kvHeads * draw(random, 1, 3);
         s.mask = seqparAttnCausal;
       }},
      {"scale", [](SoftmaxSpec& s, std::mt19937_64&) { s.givenScale = 0.8f; }},
      {"deterministic",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.deterministic = true;
         s.type = seqparBfloat16;
         s.mask = seqparAttnCausal;
       }},
      {"several at once",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         const auto coin = [&] { return random() % 2 == 0; };
         s.mask = coin() ? seqparAttnCausal : seqparAttnFull;
         s.kvHeads = draw(random, 1, 3);
         s.heads = s.kvHeads * draw(random, 1, 3);
         if (coin()) s.windowLeft = draw(random, 0, s.tokens / 2);
         if (coin()) {
           s.batch = 1;
           s.bounds = {0, draw(random, 0, s.tokens), s.tokens};
         }
         s.sinks = coin();
         s.reserve = coin();
         s.headsFirst = coin();
         if (coin()) s.softcap = 2;
         if (coin()) s.givenScale = 0.5f;
         if (coin()) s.type = coin() ? seqparBfloat16 : seqparFloat16;
         if (coin()) s.wireType = seqparBfloat16;
       }},
      {"reserve",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.reserve = true;
         s.mask = static_cast<int>(random() % 2);
         s.sinks = random() % 2 == 0;
         s.kvHeads = draw(random, 1, 3);
         s.heads = s.kvHeads * draw(random, 1, 2);
         if (random() % 2 == 0) s.type = seqparBfloat16;
       }},
      {"slices",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         if (random() % 3 == 0) s.kvTokens = draw(random, 1, 2 * s.tokens);
         s.slices = drawSlices(random, s.tokens, s.keys());
         s.layoutKind = static_cast<int>(random() % 4) - 1;
         s.stripe = draw(random, 1, 3);
         s.sinks = random() % 3 == 0;
         if (random() % 3 == 0) s.softcap = 1.5f;
         s.kvHeads = draw(random, 1, 2);
         s.heads = s.kvHeads * draw(random, 1, 2);
         if (random() % 3 == 0) s.mask = seqparAttnCausal;
         if (random() % 3 == 0) s.windowLeft = draw(random, 0, s.tokens);
       }},
      {"wire", [](SoftmaxSpec& s, std::mt19937_64&) { s.wireType = seqparBfloat16; }},
  };
  return all;
}

/// Gives the problem a layout of random pieces.
inline void drawPieces(SoftmaxSpec& s, std::mt19937_64& random, int ranks) {
  s.layoutKind = seqparPieces;
  s.pieceBounds = {0, s.tokens};
  s.pieceOwners.clear();
  for (int64_t i = draw(random, 0, 9); i > 0; --i) s.pieceBounds.push_back(draw(random, 0, s.tokens));
  std::sort(s.pieceBounds.begin(), s.pieceBounds.end());
  for (size_t i = 0; i + 1 < s.pieceBounds.size(); ++i)
    s.pieceOwners.push_back(static_cast<int>(draw(random, 0, ranks - 1)));
}

inline SoftmaxSpec drawSpec(std::mt19937_64& random, int ranks) {
  SoftmaxSpec s;
  s.batch = draw(random, 1, 2);
  s.heads = draw(random, 1, 4);
  s.kvHeads = s.heads;
  s.headDim = 8;
  s.valueDim = 8;
  s.tokens = draw(random, ranks, 12 * ranks + 9);
  return s;
}

/// The reason why the algorithm does not support the problem; empty: it does.
inline std::string refusalOf(const seqpar::attn::AlgorithmRow& row, const SoftmaxSpec& spec, seqparComm_t comm) {
  auto desc = spec.desc();
  int ranks = 0;
  seqparCommCount(comm, &ranks);
  const auto layout = spec.layout(ranks);
  if (spec.layoutKind >= 0) desc.layout = &layout;
  const auto kvLayout = spec.kvLayout(ranks);
  if (!spec.kvPieceOwners.empty()) desc.kvLayout = &kvLayout;
  return row.refuses(seqpar::attn::readProblem("test", &desc, comm));
}

}  // namespace seqpar::attn::test
