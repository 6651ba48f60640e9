// Families with a step of whole states in fp64, token by token. The magnitude of a value is the largest one of its
// head, or of the sums of its terms' magnitudes (delta_terms.h): errors of a token reach all later ones through the
// state.
#include "support/delta_reference.h"

#include <algorithm>
#include <cmath>

#include "support/delta_terms.h"
#include "support/recurrences.h"

namespace seqpar::test {
namespace {

double largest(const std::vector<double>& numbers) {
  double most = 0;
  for (const double number : numbers) most = std::max(most, std::abs(number));
  return most;
}

/// A row divided by the root of its sum of squares + 1e-6.
struct Unit {
  std::vector<double> row;
  double inverse = 1;

  Unit(const float* from, size_t count, bool normalize) : row(from, from + count) {
    if (!normalize) return;
    double sum = 0;
    for (const double x : row) sum += x * x;
    inverse = 1 / std::sqrt(sum + 1e-6);
    for (double& x : row) x *= inverse;
  }
  /// The gradient of the row before the division, from that of the row after it.
  std::vector<double> gradient(const std::vector<double>& after, bool normalize) const {
    if (!normalize) return after;
    double along = 0;
    for (size_t i = 0; i < row.size(); ++i) along += row[i] * after[i];
    auto before = after;
    for (size_t i = 0; i < row.size(); ++i) before[i] = inverse * (after[i] - along * row[i]);
    return before;
  }
};

/// One head of a batch entry.
class Head {
 public:
  Head(const LinearCase& c, size_t b, size_t h)
      : c_(c), recurrence_(*headRecurrence(c.family)), b_(b), h_(h), key_(h / c.group()), begins_(c.tokens, -1) {
    for (size_t s = 0; s + 1 < c.cuSeqlens.size(); ++s) {
      if (c.cuSeqlens[s] < c.cuSeqlens[s + 1]) begins_[static_cast<size_t>(c.cuSeqlens[s])] = static_cast<long>(s);
    }
    for (size_t t = 0; t < c.tokens; ++t) {
      keys_.emplace_back(c.k.data() + keyRow(t), c.dk, c.normalize);
      queries_.emplace_back(c.q.data() + keyRow(t), c.dk, c.normalize);
      scaled_.push_back(queries_.back().row);
      for (double& x : scaled_.back()) x *= static_cast<double>(c.scale);
      decays_.push_back(decaysAt(t));
      const float* const v = c.v.data() + valueRow(t);
      values_.emplace_back(v, v + c.dv);
    }
  }

  void forward(LinearReference& to, const std::vector<size_t>& borders) {
    std::vector<double> state = c_.cuSeqlens.empty() ? initialOf(b_) : std::vector<double>(size());
    std::vector<double> all;
    Terms terms(c_.dk, c_.dv, 1);
    double ofOut = 0;
    const auto note = [&](size_t t) {
      for (size_t i = 0; i < borders.size(); ++i) {
        if (borders[i] == t) put(to.before[i], stateRow(b_), state, largest(state));
      }
    };
    for (size_t t = 0; t < c_.tokens; ++t) {
      note(t);
      if (begins_[t] >= 0) state = initialOf(static_cast<size_t>(begins_[t]));
      before_.push_back(state);
      std::vector<double> out(c_.dv);
      recurrence_.step(token(t), c_.dk, c_.dv, state.data(), out.data());
      all.insert(all.end(), out.begin(), out.end());
      written_.push_back(writtenBy(t, state));
      enter(terms, t);
      terms.add(keys_[t].row.data(), written_[t].data());
      ofOut = std::max(ofOut, largest(terms.ofColumns(scaled_[t].data())));
      scale_ = std::max({scale_, largest(state), terms.mostOfState()});
    }
    note(c_.tokens);
    putTokens(
        to.out, all, c_.dv, [&](size_t t) { return valueRow(t); }, ofOut);
    put(to.final, stateRow(b_), state, std::max(scale_, largest(state)));
    for (auto& states : to.before) raise(states, stateRow(b_), size(), scale_);
  }

  void backward(LinearReference& to) {
    std::vector<double> gradient(size(), 0.0);
    if (!c_.dFinal.empty()) {
      const auto from = c_.dFinal.begin() + static_cast<long>(stateRow(b_));
      gradient.assign(from, from + static_cast<long>(size()));
    }
    const size_t width = c_.gateWidth();
    std::vector<double> dq(c_.tokens * c_.dk), dk(dq), dv(c_.tokens * c_.dv), dGate(c_.tokens * width),
        dBeta(c_.tokens);
    double most = largest(gradient), ofGates = 0, boundary = 0, ofBeta = 0;
    Terms terms(c_.dk, c_.dv, 2);  // of the gradient of the state
    for (size_t t = c_.tokens; t-- > 0;) {
      std::vector<double> q(c_.dk), k(c_.dk), v(c_.dv), g(c_.dk), dOut(c_.dv);
      const float* const given = c_.dOut.data() + valueRow(t);
      std::copy_n(given, c_.dv, dOut.begin());
      HeadTokenGradients own{q.data(), k.data(), v.data(), g.data(), 0};
      recurrence_.stepBack(token(t), c_.dk, c_.dv, before_[t].data(), dOut.data(), gradient.data(), own);
      double sum = 0, across = 0;
      for (size_t i = 0; i < c_.dk; ++i) {
        sum += std::abs(scaled_[t][i] * q[i]) + std::abs(keys_[t].row[i] * k[i]);
        across += std::abs(g[i]);
      }
      ofGates = std::max(ofGates, sum);
      boundary = std::max(boundary, across);
      terms.add(scaled_[t].data(), dOut.data());
      ofKeys(t, terms.ofRows(written_[t].data()), ofGates);
      most = std::max({most, largest(gradient), beta(t) * largest(terms.ofColumns(keys_[t].row.data()))});
      terms.add(keys_[t].row.data(), v.data());
      terms.decay(decays_[t].data());
      most = std::max(most, terms.mostOfState());
      for (double& x : q) x *= static_cast<double>(c_.scale);
      const auto ofQuery = queries_[t].gradient(q, c_.normalize), ofKey = keys_[t].gradient(k, c_.normalize);
      rowMost_ = std::max({rowMost_, largest(q) * queries_[t].inverse, largest(k) * keys_[t].inverse});
      std::copy(ofQuery.begin(), ofQuery.end(), dq.begin() + static_cast<long>(t * c_.dk));
      std::copy(ofKey.begin(), ofKey.end(), dk.begin() + static_cast<long>(t * c_.dk));
      std::copy(v.begin(), v.end(), dv.begin() + static_cast<long>(t * c_.dv));
      for (size_t i = 0; i < c_.dk && width > 0; ++i) dGate[t * width + (width > 1 ? i : 0)] += g[i];
      dBeta[t] = own.dBeta;
      ofBeta = std::max(ofBeta, std::abs(own.dBeta));
      if (begins_[t] >= 0) storeInitial(to, static_cast<size_t>(begins_[t]), gradient, most);
      if (begins_[t] >= 0) {
        std::fill(gradient.begin(), gradient.end(), 0.0);
        terms.clear();
      }
    }
    if (c_.cuSeqlens.empty()) storeInitial(to, b_, gradient, most);
    termsOfStates(dv, ofGates);
    putTokens(
        to.dq, dq, c_.dk, [&](size_t t) { return keyRow(t); }, rowMost_);
    putTokens(
        to.dk, dk, c_.dk, [&](size_t t) { return keyRow(t); }, rowMost_);
    putTokens(
        to.dv, dv, c_.dv, [&](size_t t) { return valueRow(t); }, most);
    // Differences of sums over the tokens of a chunk.
    if (width > 0) {
      putTokens(
          to.dGate, dGate, width, [&](size_t t) { return gateRow(t); }, 8 * ofGates + boundary);
    }
    if (!c_.hasBeta()) return;
    putTokens(
        to.dBeta, dBeta, 1, [&](size_t t) { return (b_ * c_.tokens + t) * c_.heads + h_; },
        ofBeta + most * (scale_ + 1));
  }

 private:
  size_t size() const { return c_.dk * c_.dv; }
  size_t keyRow(size_t t) const { return ((b_ * c_.tokens + t) * c_.keyHeads + key_) * c_.dk; }
  size_t valueRow(size_t t) const { return ((b_ * c_.tokens + t) * c_.heads + h_) * c_.dv; }
  size_t gateRow(size_t t) const { return ((b_ * c_.tokens + t) * c_.heads + h_) * c_.gateWidth(); }
  size_t stateRow(size_t entry) const { return (entry * c_.heads + h_) * size(); }
  std::vector<double> decaysAt(size_t t) const {
    std::vector<double> decays(c_.dk, 1.0);
    const size_t width = c_.gateWidth();
    for (size_t i = 0; width > 0 && i < c_.dk; ++i) {
      decays[i] = std::exp(static_cast<double>(c_.gate[gateRow(t) + (width > 1 ? i : 0)]));
    }
    return decays;
  }
  std::vector<double> initialOf(size_t entry) const {
    if (c_.initial.empty()) return std::vector<double>(size());
    const auto from = c_.initial.begin() + static_cast<long>(stateRow(entry));
    return {from, from + static_cast<long>(size())};
  }
  HeadToken token(size_t t) const {
    return {scaled_[t].data(), keys_[t].row.data(), values_[t].data(), decays_[t].data(),
            c_.hasBeta() ? static_cast<double>(c_.beta[(b_ * c_.tokens + t) * c_.heads + h_]) : 0};
  }

  double beta(size_t t) const { return token(t).beta; }
  /// w of S = diag(decay) S + k w^T, from S after token t.
  std::vector<double> writtenBy(size_t t, const std::vector<double>& after) const {
    const auto& k = keys_[t].row;
    const auto at = static_cast<size_t>(
        std::max_element(k.begin(), k.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }) - k.begin());
    std::vector<double> written(c_.dv);
    for (size_t e = 0; e < c_.dv && k[at] != 0; ++e) {
      const double decay = decays_[t][at];
      written[e] = (after[at * c_.dv + e] - (decay == 0 ? 0 : decay * before_[t][at * c_.dv + e])) / k[at];
    }
    return written;
  }
  /// The state's terms at the start of token t.
  void enter(Terms& terms, size_t t) const {
    if (begins_[t] >= 0) terms.clear();
    terms.decay(decays_[t].data());
  }
  /// `ofRow`: magnitudes of terms of the gradient of a key or a scaled query.
  void ofKeys(size_t t, const std::vector<double>& ofRow, double& ofGates) {
    rowMost_ = std::max(rowMost_, largest(ofRow) * keys_[t].inverse);
    double sum = 0;
    for (size_t i = 0; i < c_.dk; ++i) sum += std::abs(keys_[t].row[i]) * ofRow[i];
    ofGates = std::max(ofGates, sum);
  }
  void ofQueries(size_t t, const std::vector<double>& ofRow, double& ofGates) {
    rowMost_ = std::max(rowMost_, largest(ofRow) * std::abs(static_cast<double>(c_.scale)) * queries_[t].inverse);
    double sum = 0;
    for (size_t i = 0; i < c_.dk; ++i) sum += std::abs(scaled_[t][i]) * ofRow[i];
    ofGates = std::max(ofGates, sum);
  }
  /// The terms of dq and dk that states contribute.
  void termsOfStates(const std::vector<double>& dv, double& ofGates) {
    Terms terms(c_.dk, c_.dv, 1);
    for (size_t t = 0; t < c_.tokens; ++t) {
      enter(terms, t);
      ofKeys(t, terms.ofRows(dv.data() + t * c_.dv), ofGates);
      terms.add(keys_[t].row.data(), written_[t].data());
      const float* const given = c_.dOut.data() + valueRow(t);
      const std::vector<double> dOut(given, given + c_.dv);
      ofQueries(t, terms.ofRows(dOut.data()), ofGates);
    }
  }

  static void put(Bounded& to, size_t at, const std::vector<double>& values, double magnitude) {
    for (size_t i = 0; i < values.size(); ++i) {
      to.value[at + i] += values[i];
      to.magnitude[at + i] += magnitude;
    }
  }
  static void raise(Bounded& to, size_t at, size_t count, double magnitude) {
    for (size_t i = at; i < at + count; ++i) to.magnitude[i] = std::max(to.magnitude[i], magnitude);
  }
  template <class RowOf>
  void putTokens(Bounded& to, const std::vector<double>& values, size_t width, RowOf rowOf, double least = 0) const {
    const double magnitude = std::max(least, largest(values));
    for (size_t t = 0; t < c_.tokens; ++t) {
      const auto row = values.begin() + static_cast<long>(t * width);
      put(to, rowOf(t), {row, row + static_cast<long>(width)}, magnitude);
    }
  }
  void storeInitial(LinearReference& to, size_t entry, const std::vector<double>& gradient, double most) const {
    put(to.dInitial, stateRow(entry), gradient, most);
  }

  const LinearCase& c_;
  const HeadRecurrence& recurrence_;
  size_t b_, h_, key_;
  std::vector<long> begins_;  ///< the sequence that starts at a token, else -1
  std::vector<Unit> keys_, queries_;
  std::vector<std::vector<double>> scaled_, decays_, values_, before_, written_;
  double scale_ = 0, rowMost_ = 0;
};

}  // namespace

void deltaReference(const LinearCase& c, const std::vector<size_t>& borders, LinearReference& to) {
  for (size_t b = 0; b < c.batch; ++b) {
    for (size_t h = 0; h < c.heads; ++h) {
      Head head(c, b, h);
      head.forward(to, borders);
      head.backward(to);
    }
  }
}

}  // namespace seqpar::test
