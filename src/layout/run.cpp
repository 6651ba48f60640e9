#include "layout/run.h"

#include <algorithm>

namespace seqpar {

void appendRun(std::vector<seqparLayoutRun_t>& runs, seqparLayoutRun_t run) {
  if (tokensOf(run) == 0) return;
  if (run.stride == run.length || run.count == 1) run = {run.local, run.global, tokensOf(run), 1, 0};
  if (runs.empty()) {
    run.local = 0;
    runs.push_back(run);
    return;
  }
  auto& last = runs.back();
  if (last.count == 1 && run.count == 1 && globalEnd(last) == run.global) {
    last.length += run.length;
    return;
  }
  run.local = last.local + tokensOf(last);
  runs.push_back(run);
}

std::vector<seqparLayoutRun_t> clipped(std::span<const seqparLayoutRun_t> runs, int64_t begin, int64_t end) {
  std::vector<seqparLayoutRun_t> out;
  for (const auto& run : runs) {
    int64_t from = std::max(begin - run.local, int64_t{0});
    const int64_t to = std::min(end - run.local, tokensOf(run));
    while (from < to) {
      const int64_t block = from / run.length;
      const int64_t inBlock = from % run.length;
      const int64_t whole = inBlock == 0 ? (to - from) / run.length : 0;  // complete blocks
      const int64_t length = whole > 0 ? run.length : std::min(run.length - inBlock, to - from);
      appendRun(out, {0, run.global + block * run.stride + inBlock, length, std::max<int64_t>(whole, 1), run.stride});
      from += length * std::max<int64_t>(whole, 1);
    }
  }
  return out;
}

int64_t countBefore(std::span<const seqparLayoutRun_t> runs, int64_t global) {
  const auto after =
      std::partition_point(runs.begin(), runs.end(), [&](const auto& run) { return run.global < global; });
  if (after == runs.begin()) return 0;
  const auto& run = *(after - 1);
  if (run.count == 1) return run.local + std::min(global - run.global, run.length);
  const int64_t block = std::min((global - run.global) / run.stride, run.count - 1);
  return run.local + block * run.length + std::min(global - run.global - block * run.stride, run.length);
}

}  // namespace seqpar
