// mask_layout_perf: the time of seqparAttnSolveLayout, and how it balances masks, beside contiguous and zigzag layouts.
// One process, without a communicator.
//
//     mask_layout_perf [TOKENS [RANKS...]]        default: 65536 tokens, 2, 8 and 64 ranks
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "seqpar/attn.h"

namespace {

using Slices = std::vector<seqparAttnSlice_t>;

seqparAttnSlice_t full(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  return SEQPAR_ATTN_SLICE_FULL(q0, q1, k0, k1);
}
seqparAttnSlice_t causal(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  return SEQPAR_ATTN_SLICE_CAUSAL(q0, q1, k0, k1);
}

/// Causal documents with lengths of a lognormal distribution with this median and sigma 1.2.
Slices documents(int64_t tokens, double median) {
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

Slices prefixLm(int64_t tokens) {
  return {full(0, tokens / 4, 0, tokens / 4), causal(tokens / 4, tokens, 0, tokens)};
}

Slices video(int64_t tokens) {
  Slices slices;
  for (int frame = 0; frame < 16; ++frame) {
    slices.push_back(full(tokens * frame / 16, tokens * (frame + 1) / 16, 0, tokens * (frame + 1) / 16));
  }
  return slices;
}

/// A prompt of an eighth of the tokens and 16 answers.
Slices sharedPrefix(int64_t tokens) {
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

void check(seqparResult_t result) {
  if (result != seqparSuccess) throw std::runtime_error(seqparGetLastError(nullptr));
}

struct Balance {
  double imbalance;  ///< most scores of a rank, in means
  double needed;     ///< keys of other ranks that a rank needs, of an all-gather's
  int64_t bands;     ///< most bands of a rank
};

Balance balanceOf(const seqparAttnDesc_t& desc, const seqparLayout_t& layout) {
  std::vector<seqparAttnLoad_t> loads(static_cast<size_t>(layout.ranks));
  check(seqparAttnLayoutLoad(&desc, &layout, loads.data()));
  double most = 0, all = 0, keys = 0;
  int64_t bands = 0;
  for (const seqparAttnLoad_t& load : loads) {
    most = std::max(most, static_cast<double>(load.scores));
    all += static_cast<double>(load.scores);
    keys += static_cast<double>(load.keysNeeded);
    bands = std::max(bands, load.bands);
  }
  const double ranks = layout.ranks;
  return {most / all * ranks, layout.ranks > 1 ? keys / (static_cast<double>(desc.tokens) * (ranks - 1)) : 0, bands};
}

void row(const char* name, const Slices& slices, int64_t tokens, int ranks) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.tokens = tokens;
  desc.headDim = 1;
  desc.slices = static_cast<int64_t>(slices.size());
  desc.slice = slices.data();
  std::vector<int64_t> bounds(2 * static_cast<size_t>(ranks));
  std::vector<int> owners(2 * static_cast<size_t>(ranks));
  int64_t pieces = 0;
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto started = std::chrono::steady_clock::now();
    check(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &pieces));
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count());
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.tokens = tokens;
  layout.ranks = ranks;
  layout.kind = seqparContiguous;
  const Balance contiguous = balanceOf(desc, layout);
  layout.kind = seqparZigzag;
  const Balance zigzag = balanceOf(desc, layout);
  layout.kind = seqparPieces;
  layout.pieces = pieces;
  layout.pieceBounds = bounds.data();
  layout.pieceOwners = owners.data();
  const Balance solved = balanceOf(desc, layout);
  std::printf("| %-15s | %6zu | %5d | %10.2f | %6.2f | %6.2f | %6lld | %10.2f | %6.2f | %6.2f | %5lld | %6.2f |\n",
              name, slices.size(), ranks, contiguous.imbalance, zigzag.imbalance, solved.imbalance,
              static_cast<long long>(pieces), contiguous.needed, zigzag.needed, solved.needed,
              static_cast<long long>(solved.bands), times[4]);
}

void table(int64_t tokens, const std::vector<int>& ranks) {
  std::printf(
      "%lld tokens. Imbalance: most scores of a rank over the mean. Keys: received keys over those of an "
      "all-gather.\n\n",
      static_cast<long long>(tokens));
  std::printf(
      "| mask            | slices | ranks | imbalance: contiguous | zigzag | solved | pieces | keys: contiguous | "
      "zigzag "
      "| solved | bands | solver, ms |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  const double size = static_cast<double>(tokens);
  const std::vector<std::pair<const char*, Slices>> masks{{"packed", documents(tokens, size / 32)},
                                                          {"prefix-LM", prefixLm(tokens)},
                                                          {"video", video(tokens)},
                                                          {"shared prefix", sharedPrefix(tokens)},
                                                          {"short documents", documents(tokens, size / 2000)}};
  for (const auto& [name, slices] : masks) {
    for (const int count : ranks) row(name, slices, tokens, count);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int> ranks;
    for (int i = 2; i < argc; ++i) ranks.push_back(std::stoi(argv[i]));
    table(argc > 1 ? std::stoll(argv[1]) : 65536, ranks.empty() ? std::vector<int>{2, 8, 64} : ranks);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mask_layout_perf: %s\n", error.what());
    return 1;
  }
}
