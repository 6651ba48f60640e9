// The recurrence of linear attention and its gradients in fp64. Rows of the state are independent, so a thread computes
// some rows of a head at a time. It stores the state before every 64th token and recomputes the others.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "support/delta_reference.h"
#include "support/linear_case.h"
#include "support/recurrences.h"

namespace seqpar::test {
namespace {

constexpr size_t kRows = 8;     // of the state, at a time
constexpr size_t kWindow = 64;  // tokens; also the longest chunk

/// Elements of one head, [tokens][width].
std::vector<double> ofHead(const std::vector<float>& all, size_t tokens, size_t first, size_t stride, size_t width) {
  std::vector<double> numbers(tokens * width);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < width; ++i) numbers[t * width + i] = static_cast<double>(all[first + t * stride + i]);
  }
  return numbers;
}

/// Some rows.
struct Rows {
  std::vector<double> numbers;
  size_t dv = 0;
  Rows(size_t rows, size_t width) : numbers(2 * rows * width, 0.0), dv(width) {}
  StateRow at(size_t row) { return {numbers.data() + 2 * row * dv, numbers.data() + (2 * row + 1) * dv}; }
  void set(size_t row, const std::vector<float>& from, size_t offset) {
    const StateRow to = at(row);
    for (size_t e = 0; e < dv; ++e) {
      to.value[e] = from.empty() ? 0.0 : static_cast<double>(from[offset + e]);
      to.magnitude[e] = std::abs(to.value[e]);
    }
  }
};

/// Rows first ... first + count - 1 of a head's state, through all tokens forward and backward.
class HeadRows {
 public:
  HeadRows(const LinearCase& c, const std::vector<long>& sequenceAt, const std::vector<size_t>& ends, size_t b,
           size_t h, size_t first)
      : c_(c),
        sequenceAt_(sequenceAt),
        ends_(ends),
        b_(b),
        h_(h),
        first_(first),
        count_(std::min(kRows, c.dk - first)),
        v_(ofHead(c.v, c.tokens, valueRow(0), c.heads * c.dv, c.dv)),
        dOut_(ofHead(c.dOut, c.tokens, valueRow(0), c.heads * c.dv, c.dv)),
        out_(c.tokens, c.dv),
        dv_(c.tokens, c.dv),
        running_(count_, c.dv),
        gradient_(count_, c.dv),
        boundaries_(c.tokens * count_),
        terms_(c.tokens * count_),
        gates_(c.tokens * count_) {}

  void run(LinearReference& to, const std::vector<size_t>& borders) {
    forward(to, borders);
    for (size_t row = 0; row < count_; ++row) {
      gradient_.set(row, c_.dFinal, c_.dFinal.empty() ? 0 : stateRow(b_, row));
    }
    for (size_t w = kept_.size(); w-- > 0;) backward(to, w);
    if (c_.cuSeqlens.empty()) storeGradient(to, b_);
  }
  /// Adds the results that all rows of a head share. One thread at a time.
  void addShared(LinearReference& to) {
    for (size_t t = 0; t < c_.tokens; ++t) {
      const StateRow out = out_.at(t), dv = dv_.at(t);
      for (size_t e = 0; e < c_.dv; ++e) {
        to.out.value[valueRow(t) + e] += out.value[e];
        to.out.magnitude[valueRow(t) + e] += out.magnitude[e];
        to.dv.value[valueRow(t) + e] += dv.value[e];
        to.dv.magnitude[valueRow(t) + e] += dv.magnitude[e];
      }
      for (size_t row = 0; row < count_; ++row) addKeys(to, t, row);
    }
  }

 private:
  size_t keyRow(size_t t) const { return ((b_ * c_.tokens + t) * c_.keyHeads + h_ / c_.group()) * c_.dk + first_; }
  size_t valueRow(size_t t) const { return ((b_ * c_.tokens + t) * c_.heads + h_) * c_.dv; }
  /// Index of a row in an array of states; `entry`: batch entry or sequence.
  size_t stateRow(size_t entry, size_t row) const { return ((entry * c_.heads + h_) * c_.dk + first_ + row) * c_.dv; }
  double decayAt(size_t t, size_t row) const {
    if (!c_.hasGate()) return 1;
    const size_t head = (b_ * c_.tokens + t) * c_.heads + h_;
    return std::exp(static_cast<double>(c_.gate[c_.perHead()      ? h_
                                                : c_.perChannel() ? head * c_.dk + first_ + row
                                                                  : head]));
  }
  double keyAt(size_t t, size_t row) const { return static_cast<double>(c_.k[keyRow(t) + row]); }
  double queryAt(size_t t, size_t row) const {
    return static_cast<double>(c_.scale) * static_cast<double>(c_.q[keyRow(t) + row]);
  }
  void begin(size_t t) {
    if (sequenceAt_[t] < 0) return;
    for (size_t row = 0; row < count_; ++row) {
      running_.set(row, c_.initial, c_.initial.empty() ? 0 : stateRow(static_cast<size_t>(sequenceAt_[t]), row));
    }
  }
  DecayToken token(size_t t, size_t row) const {
    return {queryAt(t, row), keyAt(t, row), decayAt(t, row), v_.data() + t * c_.dv, dOut_.data() + t * c_.dv};
  }
  void advance(size_t t) {
    for (size_t row = 0; row < count_; ++row) decayStep(token(t, row), c_.dv, running_.at(row));
  }
  void store(Bounded& states) {
    for (size_t row = 0; row < count_; ++row) {
      const StateRow from = running_.at(row);
      std::copy_n(from.value, c_.dv, states.value.begin() + static_cast<long>(stateRow(b_, row)));
      std::copy_n(from.magnitude, c_.dv, states.magnitude.begin() + static_cast<long>(stateRow(b_, row)));
    }
  }

  void forward(LinearReference& to, const std::vector<size_t>& borders) {
    if (c_.cuSeqlens.empty()) {
      for (size_t row = 0; row < count_; ++row) {
        running_.set(row, c_.initial, c_.initial.empty() ? 0 : stateRow(b_, row));
      }
    }
    const auto note = [&](size_t t) {
      for (size_t i = 0; i < borders.size(); ++i) {
        if (borders[i] == t) store(to.before[i]);
      }
    };
    for (size_t t = 0; t < c_.tokens; ++t) {
      note(t);
      if (t % kWindow == 0) kept_.push_back(running_);
      begin(t);
      advance(t);
      for (size_t row = 0; row < count_; ++row) {
        decayOutput(token(t, row), c_.dv, running_.at(row), out_.at(t));
      }
    }
    note(c_.tokens);
    store(to.final);
  }

  void backward(LinearReference& to, size_t window) {
    const size_t first = window * kWindow, end = std::min(first + kWindow, c_.tokens);
    std::vector<Rows> before, after;
    running_ = kept_[window];
    for (size_t t = first; t < end; ++t) {
      begin(t);
      before.push_back(running_);
      advance(t);
      after.push_back(running_);
    }
    for (size_t t = end; t-- > first;) {
      for (size_t row = 0; row < count_; ++row) oneRow(t, row, before[t - first].at(row), after[t - first].at(row));
      if (sequenceAt_[t] < 0) continue;
      storeGradient(to, static_cast<size_t>(sequenceAt_[t]));
      gradient_ = Rows(count_, c_.dv);
    }
  }
  void oneRow(size_t t, size_t row, const StateRow& before, const StateRow& after) {
    const DecayToken own = token(t, row);
    DecayTokenGradients to;
    to.dv = dv_.at(t);
    decayStepBack(own, c_.dv, before, after, gradient_.at(row), to);
    const double scale = static_cast<double>(c_.scale);
    const size_t at = t * count_ + row;
    boundaries_[at] = to.boundary;
    terms_[at] = std::abs(own.q) * to.dqMagnitude + std::abs(own.k) * to.dkMagnitude;
    gates_[at] = to.dLogDecay;
    keys_.push_back({scale * to.dq, scale * to.dqMagnitude, to.dk, to.dkMagnitude});
  }
  void storeGradient(LinearReference& to, size_t entry) {
    for (size_t row = 0; row < count_; ++row) {
      const StateRow from = gradient_.at(row);
      std::copy_n(from.value, c_.dv, to.dInitial.value.begin() + static_cast<long>(stateRow(entry, row)));
      std::copy_n(from.magnitude, c_.dv, to.dInitial.magnitude.begin() + static_cast<long>(stateRow(entry, row)));
    }
  }

  /// Gradients of gates are differences of sums over later tokens of one chunk and sequence, and of the state after
  /// the chunk.
  double gateMagnitude(size_t t, size_t row) const { return magnitudeOf(t, std::min(t + kWindow, ends_[t]), row); }
  /// The same for earlier tokens.
  double earlierMagnitude(size_t t, size_t row) const {
    size_t first = t;
    while (first > 0 && first + kWindow > t + 1 && ends_[first - 1] == ends_[t]) --first;
    return magnitudeOf(first, t + 1, row);
  }
  double magnitudeOf(size_t first, size_t end, size_t row) const {
    double sum = 0, boundary = 0;
    for (size_t s = first; s < end; ++s) {
      sum += terms_[s * count_ + row];
      boundary = std::max(boundary, boundaries_[s * count_ + row]);
    }
    return sum + boundary;
  }
  void addKeys(LinearReference& to, size_t t, size_t row) {
    const Keys& own = keys_[(c_.tokens - 1 - t) * count_ + row];
    to.dq.value[keyRow(t) + row] += own.dq;
    to.dq.magnitude[keyRow(t) + row] += own.dqSize;
    to.dk.value[keyRow(t) + row] += own.dk;
    to.dk.magnitude[keyRow(t) + row] += own.dkSize;
    if (!c_.hasGate()) return;
    const size_t width = c_.gateWidth();
    const size_t at =
        c_.perHead() ? h_ : ((b_ * c_.tokens + t) * c_.heads + h_) * width + (width > 1 ? first_ + row : 0);
    to.dGate.value[at] += gates_[t * count_ + row];
    to.dGate.magnitude[at] += gateMagnitude(t, row);
    if (c_.perChannel()) to.dGateEarlier[at] = earlierMagnitude(t, row);
  }

  struct Keys {
    double dq, dqSize, dk, dkSize;
  };
  const LinearCase& c_;
  const std::vector<long>& sequenceAt_;
  const std::vector<size_t>& ends_;
  size_t b_, h_, first_, count_;
  std::vector<double> v_, dOut_;
  Rows out_, dv_, running_, gradient_;
  std::vector<Rows> kept_;  ///< before every kWindow-th token
  std::vector<double> boundaries_, terms_, gates_;
  std::vector<Keys> keys_;  ///< from the last token to the first
};

}  // namespace

LinearReference::LinearReference(const LinearCase& c, const std::vector<size_t>& borders, unsigned threads) {
  out.assign(c.batch * c.tokens * c.heads * c.dv);
  dv.assign(out.value.size());
  dq.assign(c.batch * c.tokens * c.keyHeads * c.dk);
  dk.assign(dq.value.size());
  dGate.assign(c.perHead() ? c.heads : c.batch * c.tokens * c.heads * c.gateWidth());
  const bool ofHeads = headRecurrence(c.family) != nullptr;
  dGateEarlier.assign(c.perChannel() && !ofHeads ? dGate.value.size() : 0, 0.0);
  dInitial.assign((c.cuSeqlens.empty() ? c.batch : c.cuSeqlens.size() - 1) * c.heads * c.dk * c.dv);
  final.assign(c.states());
  before.resize(borders.size());
  for (auto& states : before) states.assign(c.states());
  dBeta.assign(c.beta.size());
  if (ofHeads) {
    deltaReference(c, borders, *this);
    return;
  }

  std::vector<long> sequenceAt(c.tokens, -1);  // the sequence that starts at a token
  std::vector<size_t> ends(c.tokens, c.tokens);
  for (size_t s = 0; s + 1 < c.cuSeqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(c.cuSeqlens[s]), end = static_cast<size_t>(c.cuSeqlens[s + 1]);
    if (begin < end) sequenceAt[begin] = static_cast<long>(s);
    std::fill(ends.begin() + static_cast<long>(begin), ends.begin() + static_cast<long>(end), end);
  }

  const size_t blocks = (c.dk + kRows - 1) / kRows;
  std::atomic<size_t> next{0};
  std::mutex adding;
  const auto work = [&] {
    for (size_t i = next++; i < c.batch * c.heads * blocks; i = next++) {
      HeadRows rows(c, sequenceAt, ends, i / blocks / c.heads, i / blocks % c.heads, i % blocks * kRows);
      rows.run(*this, borders);
      const std::lock_guard lock(adding);
      rows.addShared(*this);
    }
  };
  std::vector<std::thread> others;
  const unsigned most = threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency());
  for (size_t i = 1; i < std::min<size_t>(most, c.batch * c.heads * blocks); ++i) others.emplace_back(work);
  work();
  for (auto& thread : others) thread.join();
}

}  // namespace seqpar::test
