#include "attn/reference.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace seqpar::perf {
namespace {

using Matrix = std::vector<double>;  // [tokens][dim]

double dot(const double* a, const double* b, size_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void addScaled(double* to, double factor, const double* from, size_t count) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// Calls body(0) ... body(count - 1) on this rank's share of the processors.
template <class Body>
void onThreads(size_t count, int ranks, Body body) {
  const size_t threads = std::max(1u, std::thread::hardware_concurrency() / static_cast<unsigned>(ranks));
  std::vector<std::jthread> others;
  const auto part = [&](size_t thread) {
    for (size_t i = thread; i < count; i += threads) body(i);
  };
  for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(part, thread);
  part(0);
}

/// One head of an array, for batch 0.
Matrix headOf(const std::vector<float>& numbers, size_t tokens, size_t heads, size_t dim, size_t head) {
  Matrix matrix(tokens * dim);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < dim; ++i) matrix[t * dim + i] = numbers[(t * heads + head) * dim + i];
  }
  return matrix;
}

/// All ranks' rows, in sequence order.
class Whole {
 public:
  Whole(const LayerPlan& plan, Group& group) : group_(group), layout_(plan.layout()) {
    for (int rank = 0; rank < group.size(); ++rank) {
      int64_t count = 0;
      require(seqparLayoutLocalLength(&layout_, rank, &count), "seqparLayoutLocalLength");
      std::vector<int64_t> globals(static_cast<size_t>(count));
      require(seqparLayoutGlobals(&layout_, rank, globals.data()), "seqparLayoutGlobals");
      if (rank == group.rank()) own_ = globals;
      all_.insert(all_.end(), globals.begin(), globals.end());
    }
  }

  Matrix gather(const Matrix& mine, size_t dim) const {
    const auto ranked = group_.gather(std::span(mine));
    Matrix ordered(ranked.size());
    for (size_t row = 0; row < all_.size(); ++row) {
      std::copy_n(ranked.data() + row * dim, dim, ordered.data() + static_cast<size_t>(all_[row]) * dim);
    }
    return ordered;
  }
  const std::vector<int64_t>& own() const { return own_; }

 private:
  Group& group_;
  seqparLayout_t layout_;
  std::vector<int64_t> own_, all_;
};

/// Sums of squares of a tensor's differences and of its reference values.
struct Squares {
  double difference = 0, reference = 0;
  void add(double got, double want) {
    difference += (got - want) * (got - want);
    reference += want * want;
  }
};

struct Head {
  Matrix q, k, v, dOut;  // of all tokens
  double scale;
  size_t dim;

  double score(int64_t query, int64_t key) const { return scale * dot(row(q, query), row(k, key), dim); }
  const double* row(const Matrix& matrix, int64_t token) const {
    return matrix.data() + static_cast<size_t>(token) * dim;
  }
};

/// A query's output and gradient, its logarithm and rowsum(dOut * out).
struct QueryResult {
  Matrix out, dq;
  double lse, delta;
};

QueryResult attend(const SoftmaxProblem& problem, const Head& head, int64_t query) {
  const auto range = problem.keysOf(query);
  QueryResult result{Matrix(head.dim), Matrix(head.dim), 0, 0};
  std::vector<double> scores;
  for (int64_t key = range.first; key < range.end; ++key) scores.push_back(head.score(query, key));
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - most);
  result.lse = most + std::log(sum);
  for (auto& score : scores) score = std::exp(score - result.lse);
  const auto weight = [&](int64_t key) { return scores[static_cast<size_t>(key - range.first)]; };
  for (int64_t key = range.first; key < range.end; ++key) {
    addScaled(result.out.data(), weight(key), head.row(head.v, key), head.dim);
  }
  const double* const dOut = head.row(head.dOut, query);
  result.delta = dot(dOut, result.out.data(), head.dim);
  for (int64_t key = range.first; key < range.end; ++key) {
    const double d = weight(key) * (dot(dOut, head.row(head.v, key), head.dim) - result.delta);
    addScaled(result.dq.data(), head.scale * d, head.row(head.k, key), head.dim);
  }
  return result;
}

/// Adds the contribution of one query head to a key's gradients.
void addKeyGradients(const SoftmaxProblem& problem, const Head& head, const Matrix& lse, const Matrix& delta,
                     int64_t key, double* dk, double* dv) {
  const auto range = problem.queriesOf(key);
  for (int64_t query = range.first; query < range.end; ++query) {
    const auto i = static_cast<size_t>(query);
    const double weight = std::exp(head.score(query, key) - lse[i]);
    const double* const dOut = head.row(head.dOut, query);
    addScaled(dv, weight, dOut, head.dim);
    const double d = weight * (dot(dOut, head.row(head.v, key), head.dim) - delta[i]);
    addScaled(dk, head.scale * d, head.row(head.q, query), head.dim);
  }
}

void compare(Squares& squares, const Matrix& got, const Matrix& want) {
  for (size_t i = 0; i < got.size(); ++i) squares.add(got[i], want[i]);
}

}  // namespace

SoftmaxProblem::Range SoftmaxProblem::keysOf(int64_t token) const {
  const auto end = std::upper_bound(bounds.begin(), bounds.end(), token);
  Range range{*(end - 1), causal ? token + 1 : *end};
  if (window > 0) range.first = std::max(range.first, token - static_cast<int64_t>(window));
  return range;
}

SoftmaxProblem::Range SoftmaxProblem::queriesOf(int64_t token) const {
  const auto end = std::upper_bound(bounds.begin(), bounds.end(), token);
  Range range{causal ? token : *(end - 1), *end};
  if (window > 0) range.end = std::min(range.end, token + static_cast<int64_t>(window) + 1);
  return range;
}

RelativeError errorOf(const SoftmaxProblem& problem, const LayerPlan& plan, Layer& layer, Group& group,
                      size_t kvHeads) {
  using Array = Layer::Array;
  const Whole whole(plan, group);
  const size_t tokens = whole.own().size(), dim = problem.headDim, perKey = problem.heads / problem.kvHeads;
  enum { kOut, kDq, kDk, kDv, kTensors };
  std::vector<Squares> squares(kTensors);
  const auto q = layer.numbers(Array::Q), k = layer.numbers(Array::K), v = layer.numbers(Array::V),
             out = layer.numbers(Array::Out), dOut = layer.numbers(Array::DOut), dq = layer.numbers(Array::Dq),
             dk = layer.numbers(Array::Dk), dv = layer.numbers(Array::Dv);
  for (size_t kvHead = 0; kvHead < std::min(kvHeads, problem.kvHeads); ++kvHead) {
    const auto keyHead = [&](const auto& numbers) { return headOf(numbers, tokens, problem.kvHeads, dim, kvHead); };
    Head head{{}, whole.gather(keyHead(k), dim), whole.gather(keyHead(v), dim), {}, 1 / std::sqrt(double(dim)), dim};
    Matrix wantDk(tokens * dim), wantDv(tokens * dim);
    for (size_t h = kvHead * perKey; h < (kvHead + 1) * perKey; ++h) {
      const auto queryHead = [&](const auto& numbers) { return headOf(numbers, tokens, problem.heads, dim, h); };
      head.q = whole.gather(queryHead(q), dim);
      head.dOut = whole.gather(queryHead(dOut), dim);
      Matrix lse(tokens), delta(tokens), wantOut(tokens * dim), wantDq(tokens * dim);
      onThreads(tokens, group.size(), [&](size_t t) {
        const auto result = attend(problem, head, whole.own()[t]);
        std::copy(result.out.begin(), result.out.end(), wantOut.data() + t * dim);
        std::copy(result.dq.begin(), result.dq.end(), wantDq.data() + t * dim);
        lse[t] = result.lse;
        delta[t] = result.delta;
      });
      compare(squares[kOut], queryHead(out), wantOut);
      compare(squares[kDq], queryHead(dq), wantDq);
      const auto allLse = whole.gather(lse, 1), allDelta = whole.gather(delta, 1);
      onThreads(tokens, group.size(), [&](size_t t) {
        addKeyGradients(problem, head, allLse, allDelta, whole.own()[t], wantDk.data() + t * dim,
                        wantDv.data() + t * dim);
      });
    }
    compare(squares[kDk], keyHead(dk), wantDk);
    compare(squares[kDv], keyHead(dv), wantDv);
  }
  std::vector<double> mine;
  for (const auto& each : squares) {
    mine.push_back(each.difference);
    mine.push_back(each.reference);
  }
  const auto all = group.gather(std::span<const double>(mine));
  const auto relative = [&](size_t tensor) {
    double difference = 0, reference = 0;
    for (size_t i = 2 * tensor; i < all.size(); i += mine.size()) {
      difference += all[i];
      reference += all[i + 1];
    }
    return std::sqrt(difference / reference);
  };
  return {relative(kOut), std::max({relative(kDq), relative(kDk), relative(kDv)})};
}

}  // namespace seqpar::perf
