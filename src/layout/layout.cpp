#include "layout/layout.h"

#include <algorithm>

#include "layout/run.h"

namespace seqpar {
namespace {

/// Deals `items` (at most `parts`) round robin to parts first, first + 1, ...: the number dealt to parts below `bound`.
int64_t dealtBelow(int64_t bound, int64_t items, int64_t first, int64_t parts) {
  const int64_t unwrapped = std::max<int64_t>(std::min(bound, std::min(first + items, parts)) - first, 0);
  const int64_t wrapped = std::max<int64_t>(std::min(bound, first + items - parts), 0);
  return unwrapped + wrapped;
}

}  // namespace

/// Calls visit(sequence) until it returns false.
template <typename Visit>
void Layout::forEachSequence(Visit visit) const {
  if (bounds_.empty()) {
    visit(Sequence{0, tokens_, 0});
    return;
  }
  int64_t first = 0;
  for (size_t s = 0; s + 1 < bounds_.size(); ++s) {
    const int64_t length = bounds_[s + 1] - bounds_[s];
    if (kind_ == seqparPieces) first = owners_[s];
    if (length > 0 && !visit(Sequence{bounds_[s], length, first})) return;
    // The leftover tokens of a sequence are congruent to its length modulo the parts, so dealing the length ends at the
    // same part.
    const int64_t dealt = kind_ == seqparStriped ? (length + stripe_ - 1) / stripe_ : length;
    first = (first + dealt) % parts_;
  }
}

int64_t Layout::chunkBegin(const Sequence& sequence, int64_t chunk) const {
  const int64_t even = sequence.length / chunks();
  const int64_t rest = sequence.length % chunks();
  const int64_t toFirst = std::min<int64_t>(rest, parts_);  // leftover tokens of first halves, then of second halves
  if (chunk <= parts_) return chunk * even + dealtBelow(chunk, toFirst, sequence.first, parts_);
  const int64_t toSecond = rest - toFirst;
  return chunk * even + rest - dealtBelow(chunks() - chunk, toSecond, sequence.first, parts_);
}

int64_t Layout::chunkLength(const Sequence& sequence, int64_t chunk) const {
  return chunkBegin(sequence, chunk + 1) - chunkBegin(sequence, chunk);
}

int64_t Layout::lengthOf(const Sequence& sequence, int64_t part) const {
  if (kind_ == seqparPieces) return part == sequence.first ? sequence.length : 0;
  if (kind_ == seqparContiguous) return chunkLength(sequence, part);
  if (kind_ == seqparZigzag) return chunkLength(sequence, part) + chunkLength(sequence, chunks() - 1 - part);
  const int64_t order = (part - sequence.first + parts_) % parts_;  // index of this part's block in a round
  const int64_t full = sequence.length / stripe_;
  const int64_t own = full / parts_ * stripe_ + (order < full % parts_ ? stripe_ : 0);
  return own + (order == full % parts_ ? sequence.length % stripe_ : 0);
}

void Layout::appendRuns(const Sequence& sequence, int64_t part, std::vector<seqparLayoutRun_t>& runs) const {
  if (kind_ == seqparPieces) {
    if (part == sequence.first) appendRun(runs, {0, sequence.begin, sequence.length, 1, 0});
    return;
  }
  if (kind_ != seqparStriped) {
    const auto append = [&](int64_t chunk) {
      appendRun(runs, {0, sequence.begin + chunkBegin(sequence, chunk), chunkLength(sequence, chunk), 1, 0});
    };
    append(part);
    if (kind_ == seqparZigzag) append(chunks() - 1 - part);
    return;
  }
  const int64_t order = (part - sequence.first + parts_) % parts_;
  const int64_t full = sequence.length / stripe_;
  const int64_t own = full / parts_ + (order < full % parts_ ? 1 : 0);
  appendRun(runs, {0, sequence.begin + order * stripe_, stripe_, own, parts_ * stripe_});
  if (order == full % parts_) {
    appendRun(runs, {0, sequence.begin + full * stripe_, sequence.length % stripe_, 1, 0});
  }
}

TokenPlace Layout::placeIn(const Sequence& sequence, int64_t index) const {
  if (kind_ == seqparPieces) return {static_cast<int>(sequence.first), index};
  if (kind_ == seqparStriped) {
    const int64_t block = index / stripe_;
    return {static_cast<int>((sequence.first + block) % parts_), block / parts_ * stripe_ + index % stripe_};
  }
  int64_t chunk = 0;  // the last chunk that starts at or before the token
  for (int64_t above = chunks(); above - chunk > 1;) {
    const int64_t middle = (chunk + above) / 2;
    (chunkBegin(sequence, middle) <= index ? chunk : above) = middle;
  }
  const int64_t inChunk = index - chunkBegin(sequence, chunk);
  if (chunk < parts_) return {static_cast<int>(chunk), inChunk};
  const int64_t part = chunks() - 1 - chunk;
  return {static_cast<int>(part), chunkLength(sequence, part) + inChunk};
}

int64_t Layout::partLength(int part) const {
  int64_t length = 0;
  forEachSequence([&](const Sequence& sequence) {
    length += lengthOf(sequence, part);
    return true;
  });
  return length;
}

int64_t Layout::sliceBegin(int64_t partLength, int slice) const {
  return partLength / slices_ * slice + std::min<int64_t>(partLength % slices_, slice);
}

int64_t Layout::localLength(int rank) const {
  const int64_t whole = partLength(rank / slices_);
  return sliceBegin(whole, rank % slices_ + 1) - sliceBegin(whole, rank % slices_);
}

int64_t Layout::toGlobal(int rank, int64_t local) const {
  const int part = rank / slices_;
  int64_t left = local + (slices_ == 1 ? 0 : sliceBegin(partLength(part), rank % slices_));
  int64_t global = 0;
  forEachSequence([&](const Sequence& sequence) {
    const int64_t length = lengthOf(sequence, part);
    if (left >= length) {
      left -= length;
      return true;
    }
    std::vector<seqparLayoutRun_t> own;
    appendRuns(sequence, part, own);
    const auto& run = own.size() > 1 && left >= own[1].local ? own[1] : own[0];
    global = globalOf(run, left);
    return false;
  });
  return global;
}

TokenPlace Layout::toLocal(int64_t global) const {
  Sequence its{};
  forEachSequence([&](const Sequence& sequence) {
    its = sequence;
    return global >= sequence.begin + sequence.length;
  });
  TokenPlace place = placeIn(its, global - its.begin);
  const int part = place.rank;
  int64_t whole = 0;
  forEachSequence([&](const Sequence& sequence) {
    const int64_t length = lengthOf(sequence, part);
    if (sequence.begin < its.begin) place.local += length;
    whole += length;
    return slices_ > 1 || sequence.begin < its.begin;  // slices need the part's whole length
  });
  if (slices_ == 1) return place;
  const int64_t even = whole / slices_;
  const int64_t longer = (even + 1) * (whole % slices_);  // tokens in slices that have one more: all if even is 0
  const int64_t slice = place.local < longer ? place.local / (even + 1)
                                             : whole % slices_ + (place.local - longer) / std::max<int64_t>(even, 1);
  return {part * slices_ + static_cast<int>(slice), place.local - sliceBegin(whole, static_cast<int>(slice))};
}

std::vector<seqparLayoutRun_t> Layout::runs(int rank) const {
  std::vector<seqparLayoutRun_t> runs;
  forEachSequence([&](const Sequence& sequence) {
    appendRuns(sequence, rank / slices_, runs);
    return true;
  });
  if (slices_ == 1 || runs.empty()) return runs;
  const int64_t whole = runs.back().local + runs.back().length * runs.back().count;
  return clipped(runs, sliceBegin(whole, rank % slices_), sliceBegin(whole, rank % slices_ + 1));
}

}  // namespace seqpar
