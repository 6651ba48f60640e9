// mask_layout_perf: the time of seqparAttnSolveLayout, and how it balances masks, beside contiguous and zigzag layouts.
// One process, without a communicator.
//
//     mask_layout_perf [TOKENS [RANKS...]]        default: 65536 tokens, 2, 8 and 64 ranks
#include <chrono>
#include <cstdio>
#include <string>

#include "mask_examples.h"

namespace {

using namespace seqpar::attn::perf;  // NOLINT(google-build-using-namespace)

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
  const auto desc = descOf(slices, tokens);
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
  for (const auto& [name, slices] : examples(tokens)) {
    for (const int count : ranks) row(name, slices, tokens, count);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int> ranks;
    for (int i = 2; i < argc; ++i) ranks.push_back(ranksOf(argv[i]));
    table(argc > 1 ? tokensOf(argv[1]) : 65536, ranks.empty() ? std::vector<int>{2, 8, 64} : ranks);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mask_layout_perf: %s\n", error.what());
    return 1;
  }
}
