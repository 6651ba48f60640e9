// Runs a softmax problem through the plan object on ranks that are threads, and compares with the definition.
#pragma once

#include "rank_threads.h"
#include "softmax_run.h"

namespace seqpar::attn::test {

/// Runs a problem on `ranks`; null: on one rank without a communicator. Returns "" or the text of the failure.
inline std::string runOn(const SoftmaxCase& c, const RankThreads* ranks, const RunOptions& options,
                         SoftmaxResult& result) {
  const int count = ranks == nullptr ? 1 : ranks->size();
  std::vector<std::vector<float>> dSinks(static_cast<size_t>(count));
  const auto body = [&](int rank) {
    return runRank(c, rank, count, ranks == nullptr ? nullptr : (*ranks)[rank], options, result,
                   dSinks[static_cast<size_t>(rank)]);
  };
  const auto said = ranks == nullptr ? std::vector<std::string>{body(0)} : ranks->each(body);
  for (const auto& text : said) {
    if (!text.empty()) return text;
  }
  if (c.spec.sinks) {
    result.dSinks.assign(static_cast<size_t>(c.spec.heads), 0);
    for (const auto& share : dSinks) {
      for (size_t h = 0; h < share.size(); ++h) result.dSinks[h] += static_cast<double>(share[h]);
    }
  }
  return "";
}

/// "" or the error text. `answer`: the expected results if they are known already.
inline std::string runCase(const SoftmaxCase& c, const RankThreads* ranks, const RunOptions& options = {},
                           const SoftmaxAnswer* answer = nullptr) {
  SoftmaxResult result(c, NAN);
  const auto said = runOn(c, ranks, options, result);
  if (!said.empty()) return said;
  const int count = ranks == nullptr ? 1 : ranks->size();
  return differences(c, answer == nullptr ? SoftmaxAnswer(c) : *answer, result, count);
}

}  // namespace seqpar::attn::test
