#include "support/linear_case.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "base/convert.h"

namespace seqpar::test {
namespace {

void roundTo(int type, std::vector<float>& numbers) {
  const auto dataType = static_cast<seqparDataType_t>(type);
  std::vector<std::byte> rounded(numbers.size() * sizeOf(dataType));
  fromFloat(numbers.data(), rounded.data(), dataType, numbers.size());
  toFloat(rounded.data(), dataType, numbers.data(), numbers.size());
}

/// Token t of batch entry b: where the reset is, and which decay each row has.
class Decays {
 public:
  explicit Decays(const LinearCase& c) : c_(c) {}
  double at(size_t b, size_t t, size_t h, size_t d) const {
    switch (c_.family) {
      case seqparAttnGla:
        return std::exp(static_cast<double>(c_.gate[((b * c_.tokens + t) * c_.heads + h) * c_.dk + d]));
      case seqparAttnScalar:
        return std::exp(static_cast<double>(c_.gate[(b * c_.tokens + t) * c_.heads + h]));
      case seqparAttnFixed:
        return std::exp(static_cast<double>(c_.gate[h]));
      default:
        return 1.0;
    }
  }

 private:
  const LinearCase& c_;
};

/// 0 where the factor is 0, whatever it multiplies.
double forget(double factor, double x) {
  return factor == 0.0 ? 0.0 : factor * x;
}

/// Gradients of gates are taken from differences of sums over the tokens behind, of one chunk, and of what lies behind
/// it.
double gateMagnitude(const std::vector<double>& boundaries, const std::vector<double>& terms, size_t dk, size_t t,
                     size_t d) {
  constexpr size_t kLongestChunk = 64;
  double sum = 0, boundary = 0;
  for (size_t s = t; s < std::min(t + kLongestChunk, terms.size() / dk); ++s) {
    sum += terms[s * dk + d];
    boundary = std::max(boundary, boundaries[s * dk + d]);
  }
  return sum + boundary;
}

struct State {
  std::vector<double> value, magnitude;
  explicit State(size_t size) : value(size, 0.0), magnitude(size, 0.0) {}
  void set(const std::vector<float>& from, size_t offset) {
    for (size_t i = 0; i < value.size(); ++i) {
      value[i] = from.empty() ? 0.0 : static_cast<double>(from[offset + i]);
      magnitude[i] = std::abs(value[i]);
    }
  }
};

}  // namespace

size_t LinearCase::gateWidth() const {
  return family == seqparAttnGla ? dk : family == seqparAttnScalar ? 1 : 0;
}

void LinearCase::fill(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> exponential;
  const auto fillNormal = [&](std::vector<float>& numbers, size_t count, int type) {
    numbers.resize(count);
    for (auto& number : numbers) number = normal(random);
    roundTo(type, numbers);
  };
  fillNormal(q, batch * tokens * keyHeads * dk, dataType);
  fillNormal(k, q.size(), dataType);
  fillNormal(v, batch * tokens * heads * dv, dataType);
  fillNormal(dOut, v.size(), dataType);
  const size_t initials = cuSeqlens.empty() ? batch : cuSeqlens.size() - 1;
  fillNormal(initial, hasInitial ? initials * heads * dk * dv : 0, seqparFloat32);
  fillNormal(dFinal, hasFinalGradient ? states() : 0, seqparFloat32);
  gate.resize(family == seqparAttnSum ? 0 : family == seqparAttnFixed ? heads : batch * tokens * heads * gateWidth());
  for (auto& number : gate) {
    const float sample = exponential(random);
    switch (strength) {
      case DecayStrength::Weak:
        number = -0.05f * sample;
        break;
      case DecayStrength::Strong:
        number = sample > 2.5f ? -30.0f : -5.0f * sample;
        break;
      case DecayStrength::Mixed:
        number = sample < 0.7f ? 0.0f : sample < 2.5f ? -3.0f * sample : -INFINITY;
        break;
    }
  }
  roundTo(gateType, gate);
}

std::string LinearCase::describe() const {
  std::ostringstream text;
  text << "family " << family << ", batch " << batch << ", tokens " << tokens << ", heads " << heads << "/" << keyHeads
       << ", dk " << dk << ", dv " << dv << ", type " << dataType << "/" << gateType << ", decay "
       << static_cast<int>(strength) << (hasInitial ? ", initial" : "") << (hasFinalGradient ? ", dFinal" : "");
  if (!cuSeqlens.empty()) {
    text << ", packed";
    for (const auto at : cuSeqlens) text << " " << at;
  }
  return text.str();
}

LinearReference::LinearReference(const LinearCase& c, const std::vector<size_t>& borders) {
  const size_t size = c.dk * c.dv, width = c.gateWidth();
  const double scale = static_cast<double>(c.scale);
  const Decays decays(c);
  out.assign(c.batch * c.tokens * c.heads * c.dv);
  dv.assign(out.value.size());
  dq.assign(c.batch * c.tokens * c.keyHeads * c.dk);
  dk.assign(dq.value.size());
  dGate.assign(c.family == seqparAttnFixed ? c.heads : c.batch * c.tokens * c.heads * width);
  dInitial.assign((c.cuSeqlens.empty() ? c.batch : c.cuSeqlens.size() - 1) * c.heads * size);
  final.assign(c.states());
  before.resize(borders.size());
  for (auto& states : before) states.assign(c.states());

  std::vector<long> sequenceAt(c.tokens, -1);  // that begins at a token
  for (size_t s = 0; s + 1 < c.cuSeqlens.size(); ++s) {
    if (c.cuSeqlens[s] < c.cuSeqlens[s + 1]) sequenceAt[static_cast<size_t>(c.cuSeqlens[s])] = static_cast<long>(s);
  }

  for (size_t b = 0; b < c.batch; ++b) {
    for (size_t h = 0; h < c.heads; ++h) {
      const size_t state = (b * c.heads + h) * size;
      const auto keyRow = [&](size_t t) { return ((b * c.tokens + t) * c.keyHeads + h / c.group()) * c.dk; };
      const auto valueRow = [&](size_t t) { return ((b * c.tokens + t) * c.heads + h) * c.dv; };
      // States before token 0, 1, ..., the last one final.
      std::vector<State> states;
      State running(size);
      if (c.cuSeqlens.empty()) running.set(c.initial, c.initial.empty() ? 0 : state);
      const auto note = [&](size_t t) {
        for (size_t i = 0; i < borders.size(); ++i) {
          if (borders[i] != t) continue;
          std::copy(running.value.begin(), running.value.end(), before[i].value.begin() + static_cast<long>(state));
          std::copy(running.magnitude.begin(), running.magnitude.end(),
                    before[i].magnitude.begin() + static_cast<long>(state));
        }
      };
      for (size_t t = 0; t < c.tokens; ++t) {
        note(t);
        if (sequenceAt[t] >= 0) {
          running.set(c.initial, (static_cast<size_t>(sequenceAt[t]) * c.heads + h) * size);
        }
        states.push_back(running);
        for (size_t d = 0; d < c.dk; ++d) {
          const double a = decays.at(b, t, h, d), key = static_cast<double>(c.k[keyRow(t) + d]);
          const double query = scale * static_cast<double>(c.q[keyRow(t) + d]);
          for (size_t e = 0; e < c.dv; ++e) {
            const double value = static_cast<double>(c.v[valueRow(t) + e]);
            double &x = running.value[d * c.dv + e], &m = running.magnitude[d * c.dv + e];
            x = forget(a, x) + key * value;
            m = forget(a, m) + std::abs(key * value);
            out.value[valueRow(t) + e] += query * x;
            out.magnitude[valueRow(t) + e] += std::abs(query) * m;
          }
        }
      }
      note(c.tokens);
      std::copy(running.value.begin(), running.value.end(), final.value.begin() + static_cast<long>(state));
      std::copy(running.magnitude.begin(), running.magnitude.end(), final.magnitude.begin() + static_cast<long>(state));

      State gradient(size);  // of the state after token t, from what comes behind
      gradient.set(c.dFinal, c.dFinal.empty() ? 0 : state);
      std::vector<double> boundaries(c.tokens * c.dk), terms(c.tokens * c.dk);
      for (size_t t = c.tokens; t-- > 0;) {
        for (size_t d = 0; d < c.dk; ++d) {
          const double a = decays.at(b, t, h, d), key = static_cast<double>(c.k[keyRow(t) + d]);
          const double query = scale * static_cast<double>(c.q[keyRow(t) + d]);
          double gate = 0, queryMagnitude = 0, keyMagnitude = 0, boundary = 0;
          for (size_t e = 0; e < c.dv; ++e) {
            const size_t at = d * c.dv + e;
            const double value = static_cast<double>(c.v[valueRow(t) + e]);
            const double dOut = static_cast<double>(c.dOut[valueRow(t) + e]);
            const double old = states[t].value[at], oldMagnitude = states[t].magnitude[at];
            const double now = forget(a, old) + key * value,
                         nowMagnitude = forget(a, oldMagnitude) + std::abs(key * value);
            boundary += gradient.magnitude[at] * nowMagnitude;
            double &y = gradient.value[at], &m = gradient.magnitude[at];
            y += query * dOut;
            m += std::abs(query * dOut);
            dq.value[keyRow(t) + d] += scale * now * dOut;
            dq.magnitude[keyRow(t) + d] += scale * nowMagnitude * std::abs(dOut);
            queryMagnitude += std::abs(query) * nowMagnitude * std::abs(dOut);
            dk.value[keyRow(t) + d] += y * value;
            dk.magnitude[keyRow(t) + d] += m * std::abs(value);
            keyMagnitude += std::abs(key) * m * std::abs(value);
            dv.value[valueRow(t) + e] += y * key;
            dv.magnitude[valueRow(t) + e] += m * std::abs(key);
            gate += forget(a, y * old);
            y = forget(a, y);
            m = forget(a, m);
          }
          boundaries[t * c.dk + d] = boundary;
          terms[t * c.dk + d] = queryMagnitude + keyMagnitude;
          const size_t at = c.family == seqparAttnFixed ? h
                            : width == 0                ? 0
                                         : ((b * c.tokens + t) * c.heads + h) * width + (width > 1 ? d : 0);
          if (c.family != seqparAttnSum) {
            dGate.value[at] += gate;
            dGate.magnitude[at] += gateMagnitude(boundaries, terms, c.dk, t, d);
          }
        }
        if (sequenceAt[t] >= 0) {
          const size_t to = (static_cast<size_t>(sequenceAt[t]) * c.heads + h) * size;
          std::copy(gradient.value.begin(), gradient.value.end(), dInitial.value.begin() + static_cast<long>(to));
          std::copy(gradient.magnitude.begin(), gradient.magnitude.end(),
                    dInitial.magnitude.begin() + static_cast<long>(to));
          gradient = State(size);
        }
      }
      if (c.cuSeqlens.empty()) {
        std::copy(gradient.value.begin(), gradient.value.end(), dInitial.value.begin() + static_cast<long>(state));
        std::copy(gradient.magnitude.begin(), gradient.magnitude.end(),
                  dInitial.magnitude.begin() + static_cast<long>(state));
      }
    }
  }
}

std::string farFrom(const Bounded& expected, const std::vector<float>& found, double terms, int type, size_t offset,
                    double least) {
  const double kHalfUlp[] = {0.0, 0x1p-11, 0x1p-8}, kSmallest[] = {0x1p-126, 0x1p-24, 0x1p-126};
  for (size_t i = 0; i < found.size(); ++i) {
    const double value = expected.value[offset + i], magnitude = expected.magnitude[offset + i];
    const double allowed = terms * 0x1p-24 * magnitude + kHalfUlp[type] * std::abs(value) + kSmallest[type] + least;
    if (std::abs(static_cast<double>(found[i]) - value) <= allowed) continue;
    std::ostringstream text;
    text << "number " << i << " of " << found.size() << " is " << found[i] << ", expected " << value << " within "
         << allowed << " (magnitude " << magnitude << ")";
    return text.str();
  }
  return "";
}

}  // namespace seqpar::test
