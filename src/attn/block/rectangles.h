// Which scores of a query shard and a key shard there are, as rectangles with a band. The only place that knows
// layouts, masks, windows and packed sequences: algorithms and block kernels see rectangles.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace seqpar::attn {

/// Token `local` + i of a shard stands at `position` + i * `stride` of the sequence, for 0 <= i < length.
struct TokenRun {
  int64_t local = 0, position = 0, length = 0, stride = 1;
};

/// Tokens `first` to `first` + `count` - 1 of a shard.
struct TokenRange {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  /// The smallest range that has both.
  TokenRange with(const TokenRange& other) const;
};

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

/// The query at position p sees the keys at p + shift - left to p + shift + right of its own sequence.
struct Visibility {
  int64_t left = kUnbounded, right = kUnbounded;  ///< at least 0
  int64_t shift = 0;                              ///< cross-attention: tokens of keys less tokens of queries
  std::span<const int64_t> cuSeqlens = {};        ///< packed sequences; empty: there is one
};

/// Query `row` + i sees key `column` + j, both local indices, if i + lower <= j <= i + upper. INT64_MIN and INT64_MAX
/// do not bound. Every row sees something and every column is seen.
struct Rectangle {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t lower = std::numeric_limits<int64_t>::min(), upper = std::numeric_limits<int64_t>::max();

  bool full() const {
    return lower == std::numeric_limits<int64_t>::min() && upper == std::numeric_limits<int64_t>::max();
  }
  /// Scores that are seen.
  int64_t scores() const;
  bool operator==(const Rectangle&) const = default;
};

/// All that the queries see of the keys, each score in exactly one rectangle; empty if that is nothing. Rectangles are
/// as large as can be where nothing bounds them. Runs are given in the order of their local indices; positions of
/// different runs need no order.
std::vector<Rectangle> rectanglesOf(std::span<const TokenRun> queries, std::span<const TokenRun> keys,
                                    const Visibility& visibility);

/// What rows `first` to `first` + `count` - 1 see.
std::vector<Rectangle> ofRows(std::span<const Rectangle> rectangles, int64_t first, int64_t count);

/// Those of at least `leastRows` rows whose first row sees keys before its diagonal, as two: what all rows see, and a
/// triangle.
std::vector<Rectangle> splitDiagonals(std::span<const Rectangle> rectangles, int64_t leastRows);

/// The rectangles of tensors whose row 0 and column 0 are these.
std::vector<Rectangle> movedBy(std::span<const Rectangle> rectangles, int64_t row, int64_t column);

/// The row within [least, most] nearest to `wanted` that cuts no rectangle in two; `wanted` if there is none.
int64_t rowBetween(std::span<const Rectangle> rectangles, int64_t least, int64_t wanted, int64_t most);

/// Whether no two have a column in common.
bool columnsApart(std::span<const Rectangle> rectangles);

/// The sum of scores().
int64_t scoresOf(std::span<const Rectangle> rectangles);

/// The runs of several shards that lie one behind the other: `local` counts through. Those that continue each other are
/// one, so that a causal mask over contiguous shards is one triangle.
std::vector<TokenRun> joinRuns(std::span<const std::vector<TokenRun>> shards);

}  // namespace seqpar::attn
