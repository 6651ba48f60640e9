#include "kernels/attn/linear/packing.h"

#include <algorithm>
#include <utility>

namespace seqpar::attn {
namespace {

int64_t quotientUp(int64_t number, int64_t by) {
  return (number + by - 1) / by;
}

}  // namespace

PackedSegments cutPacked(const std::vector<Sequence>& sequences, int64_t most) {
  std::vector<Span> whole, cut;
  int32_t order = 0;
  int64_t longest = kChunkTokens;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = sequences[i];
    const int64_t tokens = sequence.end - sequence.begin, count = quotientUp(tokens, most);
    const int64_t each = quotientUp(quotientUp(tokens, count), kChunkTokens) * kChunkTokens;
    const auto used = static_cast<int>(quotientUp(tokens, each));
    longest = std::max(longest, each);
    const bool isolated = used == 1 && !sequence.continues && !sequence.reachesEnd && i + 1 < sequences.size();
    for (int n = 0; n < used; ++n) {
      Span span;
      span.begin = sequence.begin + n * each;
      span.end = std::min(span.begin + each, sequence.end);
      span.before = n;
      span.after = used - 1 - n;
      span.continues = sequence.continues ? 1 : 0;
      span.reachesEnd = sequence.reachesEnd ? 1 : 0;
      span.order = order++;
      (isolated ? whole : cut).push_back(span);
    }
  }
  // The longest are first, so that CTAs end at about the same time.
  std::stable_sort(whole.begin(), whole.end(),
                   [](const Span& a, const Span& b) { return a.end - a.begin > b.end - b.begin; });
  PackedSegments result;
  result.segments.count = static_cast<int>(cut.size());
  result.segments.isolated = static_cast<int>(whole.size());
  result.segments.tokens = longest;
  result.spans = std::move(cut);
  result.spans.insert(result.spans.end(), whole.begin(), whole.end());
  return result;
}

}  // namespace seqpar::attn
