// Packed sequences: the flags give the results of separate sequences, run token by token.
#include <algorithm>
#include <catch2/catch.hpp>

#include "algorithm_runs.h"
#include "base/error.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

using Numbers2d = std::vector<double>;  // row-major

/// One token of one head: x -> a x + s, with a dk x dk and s dk x dv.
struct Token {
  Numbers2d a, s;
};

/// The tokens of one row of a packed batch over all ranks, and its sequences' bounds.
struct Row {
  std::vector<std::vector<Token>> heads;  ///< [head][token]
  std::vector<bool> begins;               ///< [token] a sequence starts here; [tokens] one starts after the last token
};

struct Sizes {
  int ranks;
  size_t tokens;  ///< a rank
  size_t dk, dv;
};

Numbers2d multiply(const Numbers2d& a, const Numbers2d& x, size_t rows, size_t columns, bool transposed) {
  Numbers2d y(rows * columns, 0.0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < rows; ++j) {
      for (size_t c = 0; c < columns; ++c) {
        y[i * columns + c] += (transposed ? a[j * rows + i] : a[i * rows + j]) * x[j * columns + c];
      }
    }
  }
  return y;
}

Token makeToken(seqparScanOp_t op, const Sizes& sizes, std::mt19937_64& random) {
  const auto sign = [&] { return random() % 2 == 0 ? 1.0 : -1.0; };
  Token token{Numbers2d(sizes.dk * sizes.dk, 0.0), Numbers2d(sizes.dk * sizes.dv)};
  for (double& value : token.s) value = static_cast<double>(random() % 3) - 1;
  const double common = sign();
  const size_t turn = random() % sizes.dk;
  for (size_t i = 0; i < sizes.dk; ++i) {
    const size_t j = op == seqparScanMatrix ? (i + turn) % sizes.dk : i;
    const double factor = op == seqparScanSum ? 1.0 : op == seqparScanScalar ? common : sign();
    token.a[i * sizes.dk + j] = factor;
  }
  return token;
}

/// Steps through the tokens [first, end) of a head in scan order, from x. The end of a sequence discards x. `atStart`
/// receives x as the first of these tokens sees it.
Numbers2d stepThrough(const Row& row, size_t head, const Sizes& sizes, seqparDirection_t direction, size_t first,
                      size_t end, Numbers2d x, Numbers2d* atStart) {
  for (size_t i = 0; i < end - first; ++i) {
    const size_t t = direction == seqparForward ? first + i : end - 1 - i;
    const bool fresh = direction == seqparForward ? row.begins[t] : row.begins[t + 1];
    if (fresh) x.assign(x.size(), 0.0);
    if (i == 0 && atStart != nullptr) *atStart = x;
    const Token& token = row.heads[head][t];
    x = multiply(token.a, x, sizes.dk, sizes.dv, direction == seqparReverse);
    std::transform(x.begin(), x.end(), token.s.begin(), x.begin(), std::plus<>());
  }
  return x;
}

/// The transition argument of a rank: the product of its tokens' factors, in the shape that `op` takes.
void appendTransition(std::vector<float>& transition, seqparScanOp_t op, const Sizes& sizes, const Row& row,
                      size_t head, size_t first, size_t end) {
  Numbers2d product(sizes.dk * sizes.dk, 0.0);
  for (size_t i = 0; i < sizes.dk; ++i) product[i * sizes.dk + i] = 1;
  for (size_t t = first; t < end; ++t) product = multiply(row.heads[head][t].a, product, sizes.dk, sizes.dk, false);
  if (op == seqparScanMatrix) transition.insert(transition.end(), product.begin(), product.end());
  if (op == seqparScanScalar) transition.push_back(static_cast<float>(product[0]));
  if (op != seqparScanDiag) return;
  for (size_t i = 0; i < sizes.dk; ++i) transition.push_back(static_cast<float>(product[i * sizes.dk + i]));
}

unsigned char flagsOf(const Row& row, seqparDirection_t direction, size_t first, size_t end) {
  // Boundaries are before token b; reverse sees them from the other side.
  const size_t edge = direction == seqparForward ? first : end;
  unsigned char flags = row.begins[edge] ? SEQPAR_SCAN_RESET_IN : 0;
  if (std::find(row.begins.begin() + first + 1, row.begins.begin() + end, true) != row.begins.begin() + end) {
    flags |= SEQPAR_SCAN_CUT;
  }
  return flags;
}

struct PackedCase {
  ScanCase scanCase;
  std::vector<Numbers2d> prefix, total;  ///< [rank]
};

/// A packed batch cut over the ranks, and what each rank must get, found without cutting.
PackedCase makePacked(seqparScanOp_t op, seqparDirection_t direction, const Sizes& sizes, size_t rows,
                      size_t headsOfRow, std::mt19937_64& random) {
  PackedCase packed;
  ScanSpec& spec = packed.scanCase.spec;
  spec.size = sizes.ranks;
  spec.op = op;
  spec.direction = direction;
  spec.heads = rows * headsOfRow;
  spec.sequences = rows;
  spec.dk = sizes.dk;
  spec.dv = sizes.dv;
  spec.flags = spec.initial = true;
  packed.scanCase.ranks.resize(static_cast<size_t>(sizes.ranks));
  packed.prefix.resize(static_cast<size_t>(sizes.ranks));
  packed.total.resize(static_cast<size_t>(sizes.ranks));
  const size_t tokens = sizes.tokens * static_cast<size_t>(sizes.ranks);
  for (size_t r = 0; r < rows; ++r) {
    Row row;
    for (size_t t = 0; t <= tokens; ++t) row.begins.push_back(random() % 5 == 0);
    for (size_t h = 0; h < headsOfRow; ++h) {
      std::vector<Token>& all = row.heads.emplace_back();
      for (size_t t = 0; t < tokens; ++t) all.push_back(makeToken(op, sizes, random));
      Numbers2d initial(sizes.dk * sizes.dv);
      for (double& value : initial) value = static_cast<double>(random() % 7) - 3;
      packed.scanCase.initial.insert(packed.scanCase.initial.end(), initial.begin(), initial.end());

      Numbers2d x = initial;
      for (int position = 0; position < sizes.ranks; ++position) {
        const int rank = spec.rankAt(position);
        const size_t first = static_cast<size_t>(rank) * sizes.tokens;
        const size_t end = first + sizes.tokens;
        ScanCase::Rank& mine = packed.scanCase.ranks[rank];
        const Numbers2d local = stepThrough(row, h, sizes, direction, first, end, Numbers2d(x.size(), 0.0), nullptr);
        mine.state.insert(mine.state.end(), local.begin(), local.end());
        appendTransition(mine.transition, op, sizes, row, h, first, end);
        if (h == 0) mine.flags.push_back(flagsOf(row, direction, first, end));

        Numbers2d atStart;
        x = stepThrough(row, h, sizes, direction, first, end, x, &atStart);
        packed.prefix[rank].insert(packed.prefix[rank].end(), atStart.begin(), atStart.end());
        packed.total[rank].insert(packed.total[rank].end(), x.begin(), x.end());
      }
    }
  }
  return packed;
}

}  // namespace

TEST_CASE("flags give the same packed results as a token-by-token run") {
  const seqparScanOp_t op = GENERATE(seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  const seqparDirection_t direction = GENERATE(seqparForward, seqparReverse);
  const size_t tokens = GENERATE(1, 2, 6);
  const int ranks = GENERATE(1, 2, 5, 7);
  CAPTURE(op, direction, tokens, ranks);
  std::mt19937_64 random(tokens * 1000 + static_cast<size_t>(ranks));
  const PackedCase packed = makePacked(op, direction, {ranks, tokens, 3, 5}, 4, 2, random);
  const std::vector<int> nodes = randomNodes(random, ranks, 3);
  const std::vector<Outputs> outputs(static_cast<size_t>(ranks), Outputs::Both);
  MemoryLanes lanes(ranks, {});
  for (const seqparScanAlgorithm_t algorithm : allAlgorithms()) {
    std::vector<ScanBuffers> buffers = runScan(packed.scanCase, algorithm, 2, outputs, nodes, lanes);
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(algorithm, rank);
      CHECK(differenceFrom(packed.prefix[rank], buffers[rank].prefixValues()) == "");
      CHECK(differenceFrom(packed.total[rank], buffers[rank].totalValues()) == "");
    }
  }
}
