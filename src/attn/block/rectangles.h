// The visible scores of a query shard and a key shard, as rectangles with a band. Only this file handles layouts,
// masks, windows and packed sequences: algorithms and block kernels process rectangles.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace seqpar::attn {

/// Token `local` + i of a shard is token `position` + i * `stride` of the sequence, for 0 <= i < length.
struct TokenRun {
  int64_t local = 0, position = 0, length = 0, stride = 1;

  bool operator==(const TokenRun&) const = default;
};

/// Tokens `first` to `first` + `count` - 1 of a shard.
struct TokenRange {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  /// The smallest range that contains both.
  TokenRange with(const TokenRange& other) const;
};

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

class SliceMask;

/// The query at position p sees the keys at p + shift - left to p + shift + right of the same sequence; or, with
/// `slices`, the keys that these contain.
struct Visibility {
  int64_t left = kUnbounded, right = kUnbounded;  ///< at least 0
  int64_t shift = 0;                              ///< cross-attention: key tokens minus query tokens
  std::span<const int64_t> cuSeqlens = {};        ///< packed sequences; empty: one sequence
  std::shared_ptr<const SliceMask> slices = {};   ///< null: none; else the other members are not read
};

/// Query `row` + i sees key `column` + j, both local indices, if i + lower <= j <= i + upper. INT64_MIN and INT64_MAX
/// are no limits. Every row sees at least one key, and every column is seen by at least one row.
struct Rectangle {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t lower = std::numeric_limits<int64_t>::min(), upper = std::numeric_limits<int64_t>::max();

  bool full() const {
    return lower == std::numeric_limits<int64_t>::min() && upper == std::numeric_limits<int64_t>::max();
  }
  /// Number of visible scores.
  int64_t scores() const;
  bool operator==(const Rectangle&) const = default;
};

/// All visible scores, each in exactly one rectangle; empty if there is none. Unbounded rectangles are maximal. Runs
/// are in the order of their local indices; positions of different runs may have any order.
std::vector<Rectangle> rectanglesOf(std::span<const TokenRun> queries, std::span<const TokenRun> keys,
                                    const Visibility& visibility);

/// Removes rows without visible keys, columns that no row sees and bounds that exclude nothing; false if no score is
/// visible.
bool trim(Rectangle& rectangle);

/// The rectangles restricted to rows `first` to `first` + `count` - 1.
std::vector<Rectangle> ofRows(std::span<const Rectangle> rectangles, int64_t first, int64_t count);

/// Splits each rectangle of at least `leastRows` rows with visible keys left of its diagonal in the first row: the
/// columns that all rows see, and a triangle.
std::vector<Rectangle> splitDiagonals(std::span<const Rectangle> rectangles, int64_t leastRows);

/// The rectangles relative to tensors that start at `row` and `column`.
std::vector<Rectangle> movedBy(std::span<const Rectangle> rectangles, int64_t row, int64_t column);

/// The row within [least, most] nearest to `preferred` that is inside no rectangle; `preferred` if there is none.
int64_t rowBetween(std::span<const Rectangle> rectangles, int64_t least, int64_t preferred, int64_t most);

/// Whether no two rectangles have a common column.
bool columnsDisjoint(std::span<const Rectangle> rectangles);

/// The sum of scores().
int64_t scoresOf(std::span<const Rectangle> rectangles);

/// The runs of several concatenated shards, with continuous `local` indices. Consecutive runs are joined, so a causal
/// mask over contiguous shards is one triangle.
std::vector<TokenRun> joinRuns(std::span<const std::vector<TokenRun>> shards);

}  // namespace seqpar::attn
