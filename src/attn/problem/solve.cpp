#include "attn/problem/solve.h"

#include <algorithm>
#include <tuple>

#include "attn/problem/row_areas.h"

namespace seqpar::attn {
namespace {

using Intervals = std::vector<Interval>;

/// The tokens of a group of ranks as a circle: token u of the circle is a token of the sequence.
class Circle {
 public:
  Circle(const Intervals& parts, const RowAreas& areas) : parts_(parts), areas_(areas) {
    for (const auto& part : parts) {
      starts_.push_back(tokens_);
      before_.push_back(area_);
      tokens_ += part.length();
      area_ += areas.before(part.end) - areas.before(part.begin);
    }
  }

  int64_t tokens() const { return tokens_; }
  Area area() const { return area_; }

  /// Scores of the window of `length` tokens from token `at` on.
  Area areaOf(int64_t at, int64_t length) const {
    const int64_t end = at + length;
    return end <= tokens_ ? before(end) - before(at) : area_ - before(at) + before(end - tokens_);
  }

  /// The window's tokens, ascending.
  Intervals window(int64_t at, int64_t length) const {
    Intervals out;
    const int64_t behind = at + length - tokens_;
    if (behind > 0) append(0, behind, out);
    append(at, std::min(at + length, tokens_), out);
    return out;
  }

  /// Calls visit(u) for the tokens of the circle that are rows[i].
  template <typename Visit>
  void each(const std::vector<int64_t>& rows, Visit visit) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto end = std::lower_bound(rows.begin(), rows.end(), parts_[i].end);
      for (auto row = std::lower_bound(rows.begin(), rows.end(), parts_[i].begin); row < end; ++row) {
        visit(starts_[i] + *row - parts_[i].begin);
      }
    }
  }

 private:
  Area before(int64_t at) const {
    size_t part = parts_.size() - 1;
    while (part > 0 && starts_[part] > at) --part;
    return before_[part] + areas_.before(parts_[part].begin + at - starts_[part]) - areas_.before(parts_[part].begin);
  }

  void append(int64_t begin, int64_t end, Intervals& out) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int64_t from = std::max(begin, starts_[i]), to = std::min(end, starts_[i] + parts_[i].length());
      if (from >= to) continue;
      const Interval tokens{parts_[i].begin + from - starts_[i], parts_[i].begin + to - starts_[i]};
      if (!out.empty() && out.back().end == tokens.begin) {
        out.back().end = tokens.end;
      } else {
        out.push_back(tokens);
      }
    }
  }

  const Intervals& parts_;
  const RowAreas& areas_;
  std::vector<int64_t> starts_;
  std::vector<Area> before_;
  int64_t tokens_ = 0;
  Area area_ = 0;
};

class Solver {
 public:
  Solver(const SliceMask& mask, int64_t granule, bool ownKeys)
      : mask_(mask), areas_(mask), granule_(granule), ownKeys_(ownKeys) {
    for (const auto& slice : mask.slices()) {
      rows_.push_back(slice.row);
      rows_.push_back(slice.row + slice.rows);
    }
    std::sort(rows_.begin(), rows_.end());
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    const size_t slices = mask.slices().size();
    constexpr size_t kMany = size_t{1} << 13;
    priced_ = std::clamp<size_t>(slices == 0 ? 1 : kMany / slices, 1, 6);
  }

  /// Gives `tokens` to the ranks from `first` on, of which rank first + i has lengths[first + i] tokens.
  void split(const Intervals& tokens, int first, int end, const std::vector<int64_t>& lengths,
             std::vector<Piece>& out) const {
    if (end - first == 1) {
      for (const auto& interval : tokens) out.push_back({interval, first});
      return;
    }
    const int middle = first + (end - first) / 2;
    int64_t length = 0;
    for (int rank = first; rank < middle; ++rank) length += lengths[static_cast<size_t>(rank)];
    const Circle circle(tokens, areas_);
    const int64_t at = position(circle, length, middle - first, end - first);
    split(circle.window(at, length), first, middle, lengths, out);
    split(rest(circle, at, length), middle, end, lengths, out);
  }

 private:
  struct Candidate {
    int64_t at;
    Area error;
  };

  static Intervals rest(const Circle& circle, int64_t at, int64_t length) {
    const int64_t from = circle.tokens() == 0 ? 0 : (at + length) % circle.tokens();
    return circle.window(from, circle.tokens() - length);
  }

  /// The first token of the window of `length` tokens for `ranks` of `all` ranks.
  int64_t position(const Circle& circle, int64_t length, int ranks, int all) const {
    if (length == 0 || length == circle.tokens()) return 0;
    constexpr int kTolerance = 512;
    const Area tolerance = circle.area() * ranks / kTolerance;
    std::vector<Candidate> good, exact;  // exact: between the multiples of the granule
    Candidate best{0, -1};
    const auto error = [&](int64_t at) { return circle.areaOf(at, length) * all - circle.area() * ranks; };
    const auto add = [&](int64_t at, Area e, std::vector<Candidate>& to) {
      if (e < 0) e = -e;
      if (best.error < 0 || e < best.error) best = {at, e};
      if (e <= tolerance) to.push_back({at, e});
    };
    const auto consider = [&](int64_t at, Area e) { add(at, e, good); };
    // At most this many positions: a bound of the time for very long sequences.
    constexpr int64_t kMostPositions = int64_t{1} << 16, kFewest = 64;
    const int64_t least = (circle.tokens() + kMostPositions - 1) / kMostPositions;
    const auto scan = [&](int64_t step) {
      Area before = error(0);
      consider(0, before);
      for (int64_t at = 0; at < circle.tokens(); at += step) {
        const int64_t next = std::min(at + step, circle.tokens());
        const Area after = error(next % circle.tokens());
        consider(next % circle.tokens(), after);
        if ((before < 0) != (after < 0)) {  // the exact balance is between the two
          int64_t low = at, high = next;
          while (high - low > 1) {
            const int64_t between = low + (high - low) / 2;
            ((error(between) < 0) == (before < 0) ? low : high) = between;
          }
          add(low, error(low), exact);
          add(high % circle.tokens(), error(high % circle.tokens()), exact);
        }
        before = after;
      }
    };
    scan(std::max(least, std::min(granule_, circle.tokens() / kFewest)));
    circle.each(rows_, [&](int64_t at) {  // windows that start or end with a slice
      consider(at, error(at));
      const int64_t start = (at + circle.tokens() - length) % circle.tokens();
      consider(start, error(start));
    });
    if (good.empty()) good = std::move(exact);
    if (good.empty()) scan(least);
    return good.empty() ? best.at : cheapest(circle, length, std::move(good));
  }

  /// The position with the fewest keys that one side needs from the other; then with the fewest pieces, the smallest
  /// error, the smallest position. Some of `good` are compared.
  int64_t cheapest(const Circle& circle, int64_t length, std::vector<Candidate> good) const {
    std::sort(good.begin(), good.end(), [](const Candidate& a, const Candidate& b) { return a.at < b.at; });
    using Price = std::tuple<int64_t, size_t, Area, int64_t>;
    Price least;
    const size_t count = std::min(priced_, good.size());
    for (size_t i = 0; i < count; ++i) {
      const auto& candidate = good[i * good.size() / count];
      const auto some = circle.window(candidate.at, length), others = rest(circle, candidate.at, length);
      const int64_t needed = count == 1 ? 0 : keysNeeded(some) + keysNeeded(others);
      const Price price{needed, some.size() + others.size(), candidate.error, candidate.at};
      if (i == 0 || price < least) least = price;
    }
    return std::get<3>(least);
  }

  int64_t keysNeeded(const Intervals& queries) const {
    return countOutside(keysSeen(mask_, queries), ownKeys_ ? queries : Intervals{});
  }

  const SliceMask& mask_;
  RowAreas areas_;
  std::vector<int64_t> rows_;  ///< first and last rows of slices, ascending
  int64_t granule_;
  bool ownKeys_;
  size_t priced_;  ///< positions that are compared
};

}  // namespace

std::vector<Piece> solveLayout(const SliceMask& mask, int64_t tokens, int ranks, int64_t granule, bool ownKeys) {
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) lengths.push_back(tokens / ranks + (rank < tokens % ranks ? 1 : 0));
  std::vector<Piece> pieces;
  Solver(mask, granule, ownKeys).split({{0, tokens}}, 0, ranks, lengths, pieces);
  std::erase_if(pieces, [](const Piece& piece) { return piece.tokens.length() == 0; });
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.tokens.begin < b.tokens.begin; });
  return pieces;
}

}  // namespace seqpar::attn
