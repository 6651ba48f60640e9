#include "support/linear_forward_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <thread>

#include "support/packed_starts.h"
#include "support/recurrences.h"

namespace seqpar::test {
namespace {

using attn::Gate;

uint16_t toBfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t sizeOf(int type) {
  return type == seqparFloat32 ? 4 : 2;
}

/// Numbers that every type holds exactly enough: rounded here, and known from here on.
void put(std::vector<char>& to, int type, int64_t index, float value) {
  char* const at = to.data() + static_cast<size_t>(index) * sizeOf(type);
  if (type == seqparFloat32) {
    std::memcpy(at, &value, 4);
  } else if (type == seqparBfloat16) {
    const uint16_t bits = toBfloat(value);
    std::memcpy(at, &bits, 2);
  } else {
    // Drawn numbers are normal in fp16, or 0; others are not finite.
    const auto exact = std::bit_cast<uint32_t>(value), bits = exact + 0x0fff + (exact >> 13 & 1);
    const uint32_t exponent = std::isfinite(value) ? bits >> 23 & 0xff : 255;
    uint16_t half = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (exponent == 255) {
      half = static_cast<uint16_t>(half | (std::isnan(value) ? 0x7e00 : 0x7c00));
    } else if (exponent > 112) {
      half = static_cast<uint16_t>(half | (exponent - 112) << 10 | (bits >> 13 & 0x3ff));
    }
    std::memcpy(at, &half, 2);
  }
}

attn::Input stridesOf(const ForwardSpec& spec, int heads, int width) {
  attn::Input strides;
  strides.batch = spec.tokens * heads * width;
  strides.token = spec.headsFirst ? width : int64_t{heads} * width;
  strides.head = spec.headsFirst ? spec.tokens * width : width;
  return strides;
}

int64_t at(const attn::Input& strides, int64_t b, int64_t t, int64_t h, int64_t c) {
  return b * strides.batch + t * strides.token + h * strides.head + c;
}

float drawGate(Decays decays, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const auto uniform = [&] { return std::uniform_real_distribution<float>(0, 1)(random); };
  switch (decays) {
    case Decays::Typical:
      return -std::log1p(std::exp(-normal(random))) / 16;
    case Decays::Slow:
      return -1e-4F * uniform();
    case Decays::Strong:
      return -8 * uniform();
    case Decays::Thirty:
      return -30;
    case Decays::Medium:
      return -0.36F * uniform();
    case Decays::Mixed:
    case Decays::Alternating:
      break;
  }
  const float choice = uniform();
  if (choice < 0.3F) return 0;
  if (choice < 0.35F) return -std::numeric_limits<float>::infinity();
  return choice < 0.5F ? -40 * uniform() : -uniform();
}

/// Two mild chunks of 64 tokens follow two strong ones, after a mild one.
Decays decaysOf(Decays decays, int64_t token) {
  if (decays != Decays::Alternating) return decays;
  return (token / 64 + 1) / 2 % 2 == 0 ? Decays::Typical : Decays::Strong;
}

}  // namespace

std::string ForwardSpec::name() const {
  static constexpr const char* kTypes[] = {"fp32", "fp16", "bf16"};
  static constexpr const char* kGates[] = {"none", "head", "token", "channel"};
  static constexpr const char* kDecays[] = {"typical", "slow", "strong", "thirty", "mixed", "medium", "alternating"};
  std::ostringstream out;
  out << kTypes[type] << ", gate " << kGates[static_cast<int>(gate)] << ' ' << kTypes[gateType] << ' '
      << kDecays[static_cast<int>(decays)] << ", batch " << batch << ", tokens " << tokens << ", heads " << heads << '/'
      << qkHeads << ", dk " << dk << ", dv " << dv << ", segments of " << segmentTokens << " after " << leadTokens
      << ", starts " << sequences << (initial ? ", initial" : "") << (headsFirst ? ", heads first" : "")
      << (inputGates ? ", input gates" : "") << (size != 1 ? ", small" : "") << (tilt != 1 ? ", tilted" : "")
      << ", seed " << seed;
  return out.str();
}

attn::PackedSegments ForwardCase::segments(int64_t lead) const {
  auto result = packedBy(starts, spec.tokens, spec.segmentTokens);
  if (!result.spans.empty()) return result;
  attn::Segments& cut = result.segments;
  cut.tokens = spec.segmentTokens;
  if (lead < spec.tokens) cut.begin = lead;
  cut.count =
      static_cast<int>(std::max<int64_t>(1, (spec.tokens - cut.begin + spec.segmentTokens - 1) / spec.segmentTokens));
  return result;
}

ForwardCase::ForwardCase(const ForwardSpec& which) : spec(which), scale(1 / std::sqrt(static_cast<float>(which.dk))) {
  std::mt19937_64 random(spec.seed);
  std::normal_distribution<float> normal;
  layout.batch = spec.batch;
  layout.tokens = spec.tokens;
  layout.heads = spec.heads;
  layout.qkHeads = spec.qkHeads;
  layout.dk = spec.dk;
  layout.dv = spec.dv;
  layout.type = spec.type;
  layout.scale = scale;
  layout.gate = spec.gate;
  layout.gateType = spec.gateType;
  layout.q = layout.k = stridesOf(spec, spec.qkHeads, spec.dk);
  layout.v = stridesOf(spec, spec.heads, spec.dv);
  const auto draw = [&](std::vector<char>& tensor, int heads, int width, float size) {
    const int64_t count = spec.batch * spec.tokens * heads * width;
    tensor.resize(static_cast<size_t>(count) * sizeOf(spec.type));
    for (int64_t i = 0; i < count; ++i) {
      const float number = normal(random);
      put(tensor, spec.type, i, std::abs(number) < 1e-3F ? 0 : number * size);
    }
  };
  draw(q, spec.qkHeads, spec.dk, 1);
  draw(k, spec.qkHeads, spec.dk, spec.size * spec.tilt);
  draw(v, spec.heads, spec.dv, spec.size / spec.tilt);
  if (spec.gate == Gate::Head) {
    gates.resize(static_cast<size_t>(spec.heads) * 4);
    for (int h = 0; h < spec.heads; ++h) put(gates, seqparFloat32, h, drawGate(spec.decays, random));
  } else if (spec.gate != Gate::None) {
    const int width = spec.gate == Gate::Channel ? spec.dk : 1;
    layout.gates = stridesOf(spec, spec.heads, width);
    const int64_t count = spec.batch * spec.tokens * spec.heads * width;
    gates.resize(static_cast<size_t>(count) * sizeOf(spec.gateType));
    const int64_t rows = spec.headsFirst ? 1 : spec.heads;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = i / (width * rows) % spec.tokens;
      put(gates, spec.gateType, i, drawGate(decaysOf(spec.decays, token), random));
    }
  }
  if (spec.initial) {
    initial.resize(static_cast<size_t>(spec.batch * spec.heads * spec.dk) * static_cast<size_t>(spec.dv));
    for (float& number : initial) number = normal(random) * spec.size * spec.size;
  }
  for (int i = 0; i < spec.sequences && spec.tokens > 0; ++i) {
    starts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(spec.tokens)));
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (!starts.empty()) starts.push_back(spec.tokens);  // as in cu_seqlens
}

void ForwardCase::poison(Place place, float value, int64_t begin, int64_t end) {
  std::mt19937_64 random(spec.seed);
  const auto some = [&] { return random() % 4 == 0; };
  const auto set = [&](std::vector<char>& tensor, const attn::Input& strides, int type, int heads, int width) {
    for (int64_t t = begin; t < end; ++t) {
      for (int h = 0; h < heads; ++h) {
        for (int c = 0; c < width; ++c) {
          if (c > 0 && !some()) continue;
          put(tensor, type, at(strides, 0, t, h, c), value);
        }
      }
    }
  };
  switch (place) {
    case Place::Queries:
      return set(q, layout.q, spec.type, spec.qkHeads, spec.dk);
    case Place::Keys:
      return set(k, layout.k, spec.type, spec.qkHeads, spec.dk);
    case Place::Values:
      return set(v, layout.v, spec.type, spec.heads, spec.dv);
    case Place::Gates:
      if (spec.gate == Gate::Channel) set(gates, layout.gates, spec.gateType, spec.heads, spec.dk);
      if (spec.gate == Gate::Token) set(gates, layout.gates, spec.gateType, spec.heads, 1);
      return;
    case Place::Initial:
      for (float& number : initial) number = some() ? value : number;
      return;
  }
}

double roundingOf(int type) {
  return type == seqparFloat32 ? 0x1p-24 : (type == seqparBfloat16 ? 0x1p-9 : 0x1p-12);
}

double numberOf(const std::vector<char>& tensor, int type, int64_t index) {
  const char* const from = tensor.data() + static_cast<size_t>(index) * sizeOf(type);
  if (type == seqparFloat32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  if (type == seqparBfloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double ForwardCase::queryAt(int64_t b, int64_t t, int h, int c) const {
  return numberOf(q, spec.type, at(layout.q, b, t, h / (spec.heads / spec.qkHeads), c));
}
double ForwardCase::keyAt(int64_t b, int64_t t, int h, int c) const {
  return numberOf(k, spec.type, at(layout.k, b, t, h / (spec.heads / spec.qkHeads), c));
}
double ForwardCase::valueAt(int64_t b, int64_t t, int h, int c) const {
  return numberOf(v, spec.type, at(layout.v, b, t, h, c));
}
double ForwardCase::gate(int64_t b, int64_t t, int h, int c) const {
  if (spec.gate == Gate::None) return 0;
  if (spec.gate == Gate::Head) return numberOf(gates, seqparFloat32, h);
  return numberOf(gates, spec.gateType, at(layout.gates, b, t, h, spec.gate == Gate::Channel ? c : 0));
}

/// Bounds follow the numbers' magnitudes: a term q a k v of an output is rounded at most three times to the type (q
/// with its decay, k with its decay, and the state or the score), and the output once; a term of a state once, or twice
/// if the decay is applied to v. Errors of many terms cancel, so a rounding counts as roundingOf(); the output's own
/// rounding and those of the channel with the largest terms count in full. Sums, exponents and products in fp32 add at
/// most 2^-13. Underflow in fp16 adds 2^-25 of the other factor of each rounded value, and rounded states are in units
/// of 2^8 next to strong decays of channels.
void ForwardCase::computeHead(int64_t b, int h) {
  const int dk = spec.dk, dv = spec.dv;
  const int64_t index = b * spec.heads + h;
  const auto size = static_cast<size_t>(dk) * static_cast<size_t>(dv);
  const double u = roundingOf(spec.type);
  const bool mild = spec.decays == Decays::Typical || spec.decays == Decays::Slow || spec.decays == Decays::Medium;
  const double stateUnit = spec.gate == Gate::Channel && !mild ? 0x1p8 : 0;
  const bool full = spec.type == seqparFloat32, half = spec.type == seqparFloat16;
  const double perTerm = full ? 0x1p-24 * static_cast<double>(4 * spec.tokens + dk + 64) : 3 * u + 0x1p-13 + u * u * 4;
  const double perState = full ? perTerm : 2 * u + 0x1p-13;
  struct Sum {
    std::vector<double> value, size;
  };
  Sum withInitial{std::vector<double>(size), std::vector<double>(size)}, rank = withInitial;
  std::vector<double> logDecay(static_cast<size_t>(dk)), valueSum(static_cast<size_t>(dv));
  for (size_t i = 0; i < size && spec.initial; ++i) {
    withInitial.value[i] = initial[static_cast<size_t>(index) * size + i];
    withInitial.size[i] = std::abs(withInitial.value[i]);
  }
  for (int64_t t = 0; t < spec.tokens; ++t) {
    const bool reset = std::binary_search(starts.begin(), starts.end(), t);
    std::vector<double> values(static_cast<size_t>(dv)), outs(static_cast<size_t>(dv)), sizes(outs), units(outs);
    std::vector<double> largest(outs), sizesBefore(outs);  // of a channel's terms
    for (int j = 0; j < dv; ++j) {
      values[static_cast<size_t>(j)] = valueAt(b, t, h, j);
      valueSum[static_cast<size_t>(j)] += std::abs(values[static_cast<size_t>(j)]);
    }
    for (int c = 0; c < dk; ++c) {
      const double log = reset ? -std::numeric_limits<double>::infinity() : gate(b, t, h, c);
      const double a = std::exp(log), key = keyAt(b, t, h, c), query = queryAt(b, t, h, c);
      logDecay[static_cast<size_t>(c)] += log;
      const DecayToken token{query, key, a, values.data(), nullptr};
      const size_t row = static_cast<size_t>(c) * values.size();
      for (Sum* sum : {&withInitial, &rank}) {
        decayStep(token, values.size(), {sum->value.data() + row, sum->size.data() + row});
      }
      sizesBefore = sizes;
      decayOutput(token, values.size(), {withInitial.value.data() + row, withInitial.size.data() + row},
                  {outs.data(), sizes.data()});
      for (size_t j = 0; j < values.size(); ++j) {
        largest[j] = std::max(largest[j], sizes[j] - sizesBefore[j]);
        units[j] += std::abs(query) * (stateUnit + valueSum[j]) + withInitial.size[row + j];
      }
    }
    for (int j = 0; j < dv; ++j) {
      const auto to = (static_cast<size_t>(index * spec.tokens + t)) * static_cast<size_t>(dv) + static_cast<size_t>(j);
      const auto column = static_cast<size_t>(j);
      out.value[to] = scale * outs[column];
      out.bound[to] = scale * (sizes[column] + largest[column]) * perTerm + 2 * u * std::abs(out.value[to]) * 1.01 +
                      (half ? 0x1p-25 * (scale * units[column] + 1) : 1e-30);
    }
  }
  for (size_t i = 0; i < size; ++i) {
    const size_t to = static_cast<size_t>(index) * size + i;
    const double units = half ? 0x1p-25 * valueSum[i % static_cast<size_t>(dv)] : 1e-30;
    finalState.value[to] = withInitial.value[i];
    finalState.bound[to] = withInitial.size[i] * perState + units;
    rankState.value[to] = rank.value[i];
    rankState.bound[to] = rank.size[i] * perState + units;
  }
  const int width = attn::transitionWidth(layout);
  for (int c = 0; c < width; ++c) {
    const auto to = static_cast<size_t>(index * width + c);
    rankLogDecay.value[to] = logDecay[static_cast<size_t>(c)];
    rankLogDecay.bound[to] = 0x1p-24 * std::abs(logDecay[static_cast<size_t>(c)]) * 64 + 1e-30;
  }
}

void ForwardCase::computeExpected() {
  const auto states = static_cast<size_t>(spec.batch * spec.heads * spec.dk) * static_cast<size_t>(spec.dv);
  const auto make = [](Expected& expected, size_t count) {
    expected.value.assign(count, 0);
    expected.bound.assign(count, 0);
  };
  make(out, static_cast<size_t>(spec.batch * spec.heads * spec.tokens * spec.dv));
  make(finalState, states);
  make(rankState, states);
  make(rankLogDecay, static_cast<size_t>(spec.batch * spec.heads * attn::transitionWidth(layout)));
  std::vector<std::thread> threads;
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int h = 0; h < spec.heads; ++h) threads.emplace_back([this, b, h] { computeHead(b, h); });
  }
  for (std::thread& thread : threads) thread.join();
}

double excess(const Expected& expected, const std::vector<double>& found, int64_t* worst) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    double ratio;
    if (std::isnan(expected.value[i]) || std::isnan(found[i])) {
      ratio = std::isnan(expected.value[i]) && std::isnan(found[i]) ? 0 : std::numeric_limits<double>::infinity();
    } else {
      ratio = expected.value[i] == found[i] ? 0 : std::abs(found[i] - expected.value[i]) / expected.bound[i];
    }
    if (ratio > largest) {
      largest = ratio;
      *worst = static_cast<int64_t>(i);
    }
  }
  return largest;
}

}  // namespace seqpar::test
