// Softmax attention problems for tests, and their answer in fp64 by the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "random_slices.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn::test {

struct SoftmaxSpec {
  int64_t batch = 1, tokens = 1, heads = 1, kvHeads = 1, headDim = 1, valueDim = 1;
  int64_t kvTokens = 0;                   ///< 0: self-attention
  std::vector<int64_t> bounds;            ///< packed sequences; empty: one
  std::vector<int64_t> tokensOfRanks;     ///< empty: a layout
  std::vector<seqparAttnSlice_t> slices;  ///< empty: none
  int algorithm = seqparAttnRing;
  int mask = seqparAttnFull;
  int64_t windowLeft = SEQPAR_ATTN_NO_WINDOW, windowRight = SEQPAR_ATTN_NO_WINDOW;
  float softcap = 0;
  float givenScale = 0;  ///< 0: the default
  bool sinks = false, deterministic = false, reserve = false;
  seqparDataType_t type = seqparFloat32;
  seqparDataType_t wireType = seqparFloat32;
  int inner = 0, ulyssesOutside = 0;
  int layoutKind = -1;  ///< -1: the algorithm's own
  int64_t stripe = 1;
  std::vector<int64_t> pieceBounds;  ///< with layoutKind seqparPieces
  std::vector<int> pieceOwners;
  std::vector<int64_t> kvPieceBounds;  ///< cross-attention: the layout of keys; empty: the kind of the queries' layout
  std::vector<int> kvPieceOwners;
  bool headsFirst = false;  ///< [batch][heads][tokens][dim] in memory
  bool odd = false;         ///< in a GPU's memory, arrays start one element behind a multiple of 16 bytes

  int64_t keys() const { return kvTokens == 0 ? tokens : kvTokens; }
  double scale() const { return givenScale != 0 ? double{givenScale} : 1 / std::sqrt(static_cast<double>(headDim)); }

  /// Whether the query at position i sees the key at position j.
  bool sees(int64_t i, int64_t j) const {
    const int64_t at = i + (kvTokens == 0 ? 0 : kvTokens - tokens);
    if (mask == seqparAttnCausal && j > at) return false;
    if (windowLeft != SEQPAR_ATTN_NO_WINDOW && j < at - windowLeft) return false;
    if (mask == seqparAttnFull && windowRight != SEQPAR_ATTN_NO_WINDOW && j > at + windowRight) return false;
    if (!slices.empty() &&
        std::none_of(slices.begin(), slices.end(), [&](const auto& x) { return contains(x, i, j); })) {
      return false;
    }
    if (bounds.empty()) return true;
    const auto sequence = [&](int64_t t) { return std::upper_bound(bounds.begin(), bounds.end(), t); };
    return sequence(i) == sequence(j);
  }

  /// For the C interface; lives as long as this.
  seqparAttnDesc_t desc() const {
    seqparAttnDesc_t d = SEQPAR_ATTN_DESC_INITIALIZER;
    d.algorithm = algorithm;
    d.batch = batch;
    d.tokens = tokens;
    d.kvTokens = kvTokens;
    d.tokensOfRanks = tokensOfRanks.empty() ? nullptr : tokensOfRanks.data();
    d.sequences = bounds.empty() ? 0 : static_cast<int64_t>(bounds.size()) - 1;
    d.cuSeqlens = bounds.empty() ? nullptr : bounds.data();
    d.heads = heads;
    d.kvHeads = kvHeads;
    d.headDim = headDim;
    d.valueDim = valueDim;
    d.dataType = type;
    d.wireType = wireType;
    d.mask = mask;
    d.windowLeft = windowLeft;
    d.windowRight = windowRight;
    d.softcap = softcap;
    d.scale = givenScale;
    d.sinks = sinks ? 1 : 0;
    d.deterministic = deterministic ? 1 : 0;
    d.reserve = reserve ? 1 : 0;
    d.inner = inner;
    d.ulyssesOutside = ulyssesOutside;
    d.slices = static_cast<int64_t>(slices.size());
    d.slice = slices.data();
    return d;
  }

  /// The explicit layout, with layoutKind >= 0.
  seqparLayout_t layout(int ranks) const {
    seqparLayout_t given = SEQPAR_LAYOUT_INITIALIZER;
    given.kind = layoutKind;
    given.ranks = ranks;
    given.tokens = tokens;
    given.stripe = stripe;
    given.pieces = static_cast<int64_t>(pieceOwners.size());
    given.pieceBounds = pieceBounds.data();
    given.pieceOwners = pieceOwners.data();
    return given;
  }

  /// The explicit layout of keys, with kvPieceOwners.
  seqparLayout_t kvLayout(int ranks) const {
    seqparLayout_t given = SEQPAR_LAYOUT_INITIALIZER;
    given.kind = seqparPieces;
    given.ranks = ranks;
    given.tokens = kvTokens;
    given.pieces = static_cast<int64_t>(kvPieceOwners.size());
    given.pieceBounds = kvPieceBounds.data();
    given.pieceOwners = kvPieceOwners.data();
    return given;
  }

  std::string text() const {
    std::ostringstream out;
    out << "algorithm " << algorithm << ", batch " << batch << ", tokens " << tokens << ", kvTokens " << kvTokens
        << ", heads " << heads << "/" << kvHeads << ", dims " << headDim << "/" << valueDim << ", mask " << mask
        << ", window " << windowLeft << ".." << windowRight << ", softcap " << softcap << ", scale " << givenScale
        << ", sinks " << sinks << ", deterministic " << deterministic << ", reserve " << reserve << ", type " << type
        << ", wire " << wireType << ", inner " << inner << " outside " << ulyssesOutside << ", layout " << layoutKind
        << " stripe " << stripe << ", headsFirst " << headsFirst << ", odd " << odd << ", bounds";
    for (const auto bound : bounds) out << " " << bound;
    out << ", lengths";
    for (const auto length : tokensOfRanks) out << " " << length;
    out << ", pieces";
    for (size_t i = 0; i < pieceOwners.size(); ++i) out << " " << pieceBounds[i] << " on " << pieceOwners[i];
    out << ", slices";
    for (const auto& x : slices) {
      out << " {" << x.row << "+" << x.rows << ", " << x.column << "+" << x.columns << ", " << x.lower << ".."
          << x.upper << "}";
    }
    return out.str();
  }
};

/// Inputs of the whole sequence, [batch][tokens][heads][dim], and the expected results. Values are exact in the type.
struct SoftmaxCase {
  SoftmaxSpec spec;
  std::vector<double> q, k, v, dOut, sinks;

  SoftmaxCase(const SoftmaxSpec& s, uint64_t seed) : spec(s) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t count, float size) {
      std::normal_distribution<float> normal(0, size);
      std::vector<double> numbers(static_cast<size_t>(count));
      for (auto& number : numbers) number = static_cast<double>(rounded(normal(random), s.type));
      return numbers;
    };
    q = draw(s.batch * s.tokens * s.heads * s.headDim, 1);
    k = draw(s.batch * s.keys() * s.kvHeads * s.headDim, 1);
    v = draw(s.batch * s.keys() * s.kvHeads * s.valueDim, 1);
    dOut = draw(s.batch * s.tokens * s.heads * s.valueDim, 1);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < s.heads; ++h) sinks.push_back(static_cast<double>(normal(random)));
  }

  static float rounded(float value, seqparDataType_t type) {
    if (type == seqparFloat32) return value;
    const int bits = type == seqparBfloat16 ? 8 : 11;
    int exponent = 0;
    const float fraction = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
  }
};

/// Values, and a size that error bounds are relative to: the sum of the absolute values of the terms.
struct Numbers {
  std::vector<double> value, size;
  explicit Numbers(size_t count = 0) : value(count, 0), size(count, 0) {}
  void add(size_t at, double term, double termSize) {
    value[at] += term;
    size[at] += termSize;
  }
};

struct SoftmaxAnswer {
  Numbers out, lse, dq, dk, dv, dSinks;

  explicit SoftmaxAnswer(const SoftmaxCase& c) {
    const auto& s = c.spec;
    const auto count = [](int64_t n) { return static_cast<size_t>(n); };
    out = Numbers(count(s.batch * s.tokens * s.heads * s.valueDim));
    lse = Numbers(count(s.batch * s.heads * s.tokens));
    dq = Numbers(c.q.size());
    dk = Numbers(c.k.size());
    dv = Numbers(c.v.size());
    dSinks = Numbers(count(s.heads));
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.tokens; ++i) row(c, b, h, i);
      }
    }
  }

 private:
  void row(const SoftmaxCase& c, int64_t b, int64_t h, int64_t i) {
    const auto& s = c.spec;
    const int64_t kvHead = h / (s.heads / s.kvHeads);
    const auto qAt = static_cast<size_t>(((b * s.tokens + i) * s.heads + h) * s.headDim);
    const auto oAt = static_cast<size_t>(((b * s.tokens + i) * s.heads + h) * s.valueDim);
    const auto lAt = static_cast<size_t>((b * s.heads + h) * s.tokens + i);
    const auto dim = static_cast<size_t>(s.headDim), width = static_cast<size_t>(s.valueDim);
    struct Score {
      size_t k, v;
      double score, p, capFactor, size;
    };
    std::vector<Score> scores;
    double most = s.sinks ? c.sinks[static_cast<size_t>(h)] : -INFINITY;
    double largestSize = 1;
    for (int64_t j = 0; j < s.keys(); ++j) {
      if (!s.sees(i, j)) continue;
      Score x{};
      x.k = static_cast<size_t>(((b * s.keys() + j) * s.kvHeads + kvHead)) * dim;
      x.v = static_cast<size_t>(((b * s.keys() + j) * s.kvHeads + kvHead)) * width;
      for (size_t e = 0; e < dim; ++e) {
        x.score += c.q[qAt + e] * c.k[x.k + e];
        x.size += std::abs(c.q[qAt + e] * c.k[x.k + e]);
      }
      x.score *= s.scale();
      x.size *= s.scale();
      largestSize = std::max(largestSize, x.size);
      x.capFactor = 1;
      if (s.softcap != 0) {
        const double t = std::tanh(x.score / static_cast<double>(s.softcap));
        x.score = static_cast<double>(s.softcap) * t;
        x.capFactor = 1 - t * t;
      }
      most = std::max(most, x.score);
      scores.push_back(x);
    }
    if (most == -INFINITY) {
      lse.value[lAt] = -INFINITY;
      return;
    }
    double sum = s.sinks ? std::exp(c.sinks[static_cast<size_t>(h)] - most) : 0;
    for (const auto& x : scores) sum += std::exp(x.score - most);
    lse.add(lAt, most + std::log(sum), std::abs(most) + std::log(sum) + largestSize);
    double delta = 0, deltaSize = 0;
    for (auto& x : scores) {
      x.p = std::exp(x.score - lse.value[lAt]);
      for (size_t e = 0; e < width; ++e) {
        // A score that is off by its size times epsilon changes p as much, relatively.
        out.add(oAt + e, x.p * c.v[x.v + e], std::abs(x.p * c.v[x.v + e]) * largestSize);
      }
    }
    for (size_t e = 0; e < width; ++e) {
      delta += out.value[oAt + e] * c.dOut[oAt + e];
      deltaSize += out.size[oAt + e] * std::abs(c.dOut[oAt + e]);
    }
    for (const auto& x : scores) {
      double dp = 0, dpSize = 0;
      for (size_t e = 0; e < width; ++e) {
        dp += c.v[x.v + e] * c.dOut[oAt + e];
        dpSize += std::abs(c.v[x.v + e] * c.dOut[oAt + e]);
        dv.add(x.v + e, x.p * c.dOut[oAt + e], std::abs(x.p * c.dOut[oAt + e]) * largestSize);
      }
      const double ds = x.p * (dp - delta) * x.capFactor;
      const double dsSize = x.p * (dpSize + deltaSize) * largestSize;
      for (size_t e = 0; e < dim; ++e) {
        dq.add(qAt + e, ds * s.scale() * c.k[x.k + e], std::abs(dsSize * s.scale() * c.k[x.k + e]));
        dk.add(x.k + e, ds * s.scale() * c.q[qAt + e], std::abs(dsSize * s.scale() * c.q[qAt + e]));
      }
    }
    if (s.sinks) {
      const double p = std::exp(c.sinks[static_cast<size_t>(h)] - lse.value[lAt]);
      dSinks.add(static_cast<size_t>(h), -p * delta, p * deltaSize * largestSize);
    }
  }
};

}  // namespace seqpar::attn::test
