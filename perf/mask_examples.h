// Usual masks, as slices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/names.h"
#include "seqpar/attn.h"

namespace seqpar::attn::perf {

using Slices = std::vector<seqparAttnSlice_t>;

/// The argument `name` of a program.
inline int64_t argument(const std::string& name, const std::string& text, long least, long most) {
  try {
    return seqpar::perf::parseInteger(text, least, most);
  } catch (const seqpar::perf::UsageError& error) {
    throw seqpar::perf::UsageError(name + ": " + error.what());
  }
}
inline int64_t tokensOf(const std::string& text) {
  return argument("TOKENS", text, 1024, 1L << 40);
}
inline int ranksOf(const std::string& text) {
  return static_cast<int>(argument("RANKS", text, 2, 1024));
}

inline seqparAttnSlice_t full(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  return SEQPAR_ATTN_SLICE_FULL(q0, q1, k0, k1);
}
inline seqparAttnSlice_t causal(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  return SEQPAR_ATTN_SLICE_CAUSAL(q0, q1, k0, k1);
}

/// Causal documents with lengths of a lognormal distribution with this median and sigma 1.2.
inline Slices documents(int64_t tokens, double median) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> length(std::log(median), 1.2);
  Slices slices;
  for (int64_t at = 0; at < tokens;) {
    const int64_t end = std::min(tokens, at + std::max<int64_t>(1, std::llround(length(random))));
    slices.push_back(causal(at, end, at, end));
    at = end;
  }
  return slices;
}

inline Slices prefixLm(int64_t tokens) {
  return {full(0, tokens / 4, 0, tokens / 4), causal(tokens / 4, tokens, 0, tokens)};
}

inline Slices video(int64_t tokens) {
  Slices slices;
  for (int frame = 0; frame < 16; ++frame) {
    slices.push_back(full(tokens * frame / 16, tokens * (frame + 1) / 16, 0, tokens * (frame + 1) / 16));
  }
  return slices;
}

/// A prompt of an eighth of the tokens and 16 answers.
inline Slices sharedPrefix(int64_t tokens) {
  const int64_t prompt = tokens / 8;
  Slices slices{causal(0, prompt, 0, prompt)};
  for (int answer = 0; answer < 16; ++answer) {
    const int64_t first = prompt + (tokens - prompt) * answer / 16,
                  end = prompt + (tokens - prompt) * (answer + 1) / 16;
    slices.push_back(full(first, end, 0, prompt));
    slices.push_back(causal(first, end, first, end));
  }
  return slices;
}

inline void check(seqparResult_t result) {
  if (result != seqparSuccess) throw std::runtime_error(seqparGetLastError(nullptr));
}

inline std::vector<std::pair<const char*, Slices>> examples(int64_t tokens) {
  const double size = static_cast<double>(tokens);
  return {{"packed", documents(tokens, size / 32)},
          {"prefix-LM", prefixLm(tokens)},
          {"video", video(tokens)},
          {"shared prefix", sharedPrefix(tokens)},
          {"short documents", documents(tokens, size / 2000)}};
}

/// The slices must outlive it.
inline seqparAttnDesc_t descOf(const Slices& slices, int64_t tokens) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.tokens = tokens;
  desc.headDim = 1;
  desc.slices = static_cast<int64_t>(slices.size());
  desc.slice = slices.data();
  return desc;
}

}  // namespace seqpar::attn::perf
