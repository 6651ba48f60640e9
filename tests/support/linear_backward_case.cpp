#include "support/linear_backward_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/convert.h"
#include "support/packed_starts.h"

namespace seqpar::test {
namespace {

using attn::Gate;

constexpr float kLowest = -1000;  // as good as -inf, in maps

Bytes rounded(std::vector<double>& values, int type) {
  std::vector<float> floats(values.begin(), values.end());
  const auto dataType = static_cast<seqparDataType_t>(type);
  Bytes bytes(values.size() * sizeOf(dataType));
  fromFloat(floats.data(), bytes.data(), dataType, floats.size());
  values = valuesOf(bytes, type);
  return bytes;
}

std::vector<double> normal(size_t count, std::mt19937_64& random, double deviation = 1) {
  std::normal_distribution<double> draw(0, deviation);
  std::vector<double> values(count);
  for (double& value : values) value = draw(random);
  return values;
}

double mixedLog(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return -std::numeric_limits<double>::infinity();
    case 1:
      return -1e4;
    case 2:
      return -40;
    case 3:
      return 0;
    default:
      return -std::uniform_real_distribution<double>(0, 0.2)(random);
  }
}

std::vector<float> asFloats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// At least that of numbers of size `least`, and 1 if it is 0.
double normOf(const std::vector<double>& values, double least) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  const double norm = std::sqrt(std::max(sum, least * least * static_cast<double>(values.size())));
  return norm > 0 ? norm : 1;
}

/// Of tokens [from, to) alone: an affine map of the states before or after them.
LinearInputs cut(const LinearShape& shape, const LinearInputs& in, int64_t from, int64_t to) {
  const auto rows = [&](const std::vector<double>& all, int64_t width) {
    std::vector<double> some;
    for (int64_t b = 0; b < shape.batch; ++b) {
      some.insert(some.end(), all.begin() + (b * shape.tokens + from) * width,
                  all.begin() + (b * shape.tokens + to) * width);
    }
    return some;
  };
  LinearInputs some;
  some.q = rows(in.q, int64_t{shape.qkHeads} * shape.dk);
  some.k = rows(in.k, int64_t{shape.qkHeads} * shape.dk);
  some.v = rows(in.v, int64_t{shape.heads} * shape.dv);
  some.logDecay = rows(in.logDecay, int64_t{shape.heads} * shape.dk);
  if (!in.begins.empty()) some.begins.assign(in.begins.begin() + from, in.begins.begin() + to);
  return some;
}

}  // namespace

std::string BackwardShape::name() const {
  const char* gates[] = {"none", "head", "token", "channel"};
  return std::string(gates[static_cast<int>(gate)]) + (gateType == seqparBfloat16 ? "(bf16)" : "") + " " +
         typeName(static_cast<seqparDataType_t>(type)) + " b" + std::to_string(batch) + " t" + std::to_string(tokens) +
         " h" + std::to_string(heads) + "/" + std::to_string(qkHeads) + " d" + std::to_string(dk) + "x" +
         std::to_string(dv) + " segments of " + std::to_string(segmentTokens) + " decay " +
         (mixed ? "mixed" : std::to_string(decay)) + (states ? " states" : "") +
         (content == attn::Maps::PerSegment ? " per segment" : "") + (starts.empty() ? "" : " packed") +
         (inputGates ? " input gates" : "");
}

BackwardCase::BackwardCase(const BackwardShape& given, uint64_t seed) : shape(given) {
  std::mt19937_64 random(seed);
  LinearShape& s = reference;
  s.batch = shape.batch;
  s.tokens = shape.tokens;
  s.heads = shape.heads;
  s.qkHeads = shape.qkHeads;
  s.dk = shape.dk;
  s.dv = shape.dv;
  s.scale = static_cast<float>(1 / std::sqrt(shape.dk));
  inputs.q = normal(s.keySize(), random, shape.qScale);
  inputs.k = normal(s.keySize(), random, shape.kScale);
  inputs.v = normal(s.valueSize(), random);
  dOutValues = normal(s.valueSize(), random, shape.dOutScale);
  const auto scaleRows = [&](std::vector<double>& values, int64_t width, int step) {
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / width % s.tokens;
      const int64_t below = token * step % 64 * (shape.smallest + shape.largest) / 63;
      values[i] = std::ldexp(values[i], shape.largest - static_cast<int>(below));
    }
  };
  if (shape.smallest != 0 || shape.largest != 0) {
    const int64_t width = shape.scalesKeys ? int64_t{s.qkHeads} * s.dk : int64_t{s.heads} * s.dv;
    scaleRows(shape.scalesKeys ? inputs.k : inputs.v, width, 23);
    scaleRows(shape.scalesKeys ? inputs.q : dOutValues, width, 37);
  }
  for (int64_t row = 0; shape.mixed && row < s.valueSize() / s.dv; ++row) {
    if (random() % 8 == 0) std::fill_n(inputs.v.begin() + row * s.dv, s.dv, 0.0);
  }
  q = rounded(inputs.q, shape.type);
  k = rounded(inputs.k, shape.type);
  v = rounded(inputs.v, shape.type);
  dOut = rounded(dOutValues, shape.type);

  // Gates, then their values per channel.
  std::exponential_distribution<double> draw(1.0);
  std::vector<double> logs(gateNumbers());
  for (double& log : logs) {
    if (shape.mixed) {
      log = mixedLog(random);
      continue;
    }
    log = std::isinf(shape.decay) ? (draw(random) > 2 ? -std::numeric_limits<double>::infinity() : 0)
                                  : -shape.decay * draw(random);
  }
  gates = rounded(logs, shape.gateType);
  inputs.logDecay.assign(s.gateSize(), 0);
  for (int64_t i = 0; i < s.gateSize(); ++i) {
    const int64_t token = i / s.dk;
    if (shape.gate == Gate::Channel) inputs.logDecay[i] = logs[i];
    if (shape.gate == Gate::Token) inputs.logDecay[i] = logs[token];
    if (shape.gate == Gate::Head) inputs.logDecay[i] = logs[token % s.heads];
  }
  if (!shape.starts.empty()) {
    inputs.begins.assign(s.tokens, 0);
    for (const int64_t start : shape.starts) {
      if (start >= 0 && start < s.tokens) inputs.begins[start] = 1;
    }
  }
  if (shape.states) {
    inputs.initial = normal(s.stateSize(), random);
    dFinalValues = normal(s.stateSize(), random);
    initial = asFloats(inputs.initial);
    dFinal = asFloats(dFinalValues);
    inputs.initial.assign(initial.begin(), initial.end());
    dFinalValues.assign(dFinal.begin(), dFinal.end());
  }
  expected = linearGradientReference(s, inputs, dOutValues, dFinalValues);

  auto packed = packedBy(shape.starts, s.tokens, shape.segmentTokens);
  spans = packed.spans;
  segments = packed.segments;
  if (spans.empty()) {
    segments.tokens = shape.segmentTokens;
    segments.count = static_cast<int>(std::max<int64_t>((s.tokens + segments.tokens - 1) / segments.tokens, 1));
    for (int i = 0; i < segments.count; ++i) {
      const int64_t begin = std::min(i * segments.tokens, s.tokens), end = std::min(begin + segments.tokens, s.tokens);
      packed.spans.push_back({begin, end, i, segments.count - 1 - i, 1, 1});
    }
  }
  const int width = shape.gate == Gate::Channel ? s.dk : 1;
  const int64_t block = int64_t{s.dk} * s.dv, maps = s.batch * s.heads * segments.count;
  before.assign(maps * block, 0);
  after = before;
  beforeLog.assign(maps * width, 0);
  afterLog = beforeLog;
  // The map of each segment, then what the passes leave of those before and after it.
  struct Map {
    std::vector<double> state, log;
  };
  const auto mapOf = [&](const attn::Span& span, bool reverse) {
    const int64_t from = span.begin, to = span.end;
    LinearShape part = s;
    part.tokens = to - from;
    LinearInputs some = cut(s, inputs, from, to);
    // The state before a sequence gets its gradient, though it is no other one's.
    if (reverse && !some.begins.empty()) some.begins.front() = 0;
    std::vector<double> grads;
    for (int64_t b = 0; b < s.batch; ++b) {
      const auto first = dOutValues.begin() + (b * s.tokens + from) * s.heads * s.dv;
      grads.insert(grads.end(), first, first + part.tokens * s.heads * s.dv);
    }
    Map map;
    map.state =
        reverse ? linearGradientReference(part, some, grads, {}).dInitial : linearReference(part, some).finalState;
    for (int64_t head = 0; head < s.batch * s.heads; ++head) {
      for (int i = 0; i < width; ++i) {
        const bool forgets =
            reverse ? span.after == 0 && span.reachesEnd == 0 : span.before == 0 && span.continues == 0;
        double sum = forgets ? kLowest : 0;
        for (int64_t t = from; t < to; ++t) {
          sum += inputs.logDecay[((head / s.heads * s.tokens + t) * s.heads + head % s.heads) * s.dk + i];
        }
        map.log.push_back(std::max<double>(sum, kLowest));
      }
    }
    return map;
  };
  const auto store = [&](const Map& map, std::vector<float>& states, std::vector<float>& decays, int64_t stride,
                         int64_t at) {
    for (int64_t head = 0; head < s.batch * s.heads; ++head) {
      for (int64_t i = 0; i < block; ++i)
        states[(head * stride + at) * block + i] = static_cast<float>(map.state[head * block + i]);
      for (int i = 0; i < width; ++i)
        decays[(head * stride + at) * width + i] = static_cast<float>(map.log[head * width + i]);
    }
  };
  const auto then = [&](Map& sum, const Map& next) {
    for (int64_t i = 0; i < static_cast<int64_t>(sum.state.size()); ++i) {
      const int64_t row = i / block * width + (width == 1 ? 0 : i % block / s.dv);
      sum.state[i] = next.state[i] + std::exp(next.log[row]) * sum.state[i];
    }
    for (size_t i = 0; i < sum.log.size(); ++i) sum.log[i] = std::max<double>(sum.log[i] + next.log[i], kLowest);
  };
  // The passes' format: log-decays per segment, -inf for factors of 0, NaN for undefined values: the state of the first
  // segment in their order, the log-decay of the last; with Maps::PerSegment, all of the last.
  const auto asPassesLeave = [&](const Map& sum, const Map& own, int step) {
    Map left{shape.content == attn::Maps::PerSegment ? own.state : sum.state, own.log};
    for (double& log : left.log) {
      if (log < -104) log = -std::numeric_limits<double>::infinity();
    }
    const int undefined = shape.content == attn::Maps::PerSegment ? segments.count - 1 : 0;
    if (step == undefined) std::fill(left.state.begin(), left.state.end(), std::nan(""));
    if (step == segments.count - 1) std::fill(left.log.begin(), left.log.end(), std::nan(""));
    return left;
  };
  stateGradient.assign(s.batch * s.heads * block, 0);
  logDecay.assign(s.batch * s.heads * width, 0);
  for (const bool reverse : {false, true}) {
    Map sum{std::vector<double>(s.batch * s.heads * block), std::vector<double>(s.batch * s.heads * width)};
    for (int step = 0; step < segments.count; ++step) {
      const int i = reverse ? segments.count - 1 - step : step;
      const Map own = mapOf(packed.spans[static_cast<size_t>(i)], reverse);
      store(asPassesLeave(sum, own, step), reverse ? after : before, reverse ? afterLog : beforeLog, segments.count, i);
      then(sum, own);
    }
    if (reverse) store(sum, stateGradient, logDecay, 1, 0);
  }
}

LinearGradients BackwardCase::magnitudes() const {
  LinearInputs positive = inputs;
  std::vector<double> dOutput = dOutValues, dFinalState = dFinalValues;
  for (auto* values : {&positive.q, &positive.k, &positive.v, &positive.initial, &dOutput, &dFinalState}) {
    for (double& x : *values) x = std::abs(x);
  }
  return linearGradientReference(reference, positive, dOutput, dFinalState);
}

void BackwardCase::poison(Place place, double value, int64_t begin, int64_t end) {
  const auto set = [&](Bytes& tensor, int type, int64_t width) {
    std::vector<double> values = valuesOf(tensor, type);
    for (int64_t i = begin * width; i < end * width; i += 3) values[static_cast<size_t>(i)] = value;
    tensor = rounded(values, type);
  };
  const bool channel = shape.gate == Gate::Channel;
  if (place == Place::Queries) set(q, shape.type, int64_t{shape.qkHeads} * shape.dk);
  if (place == Place::Keys) set(k, shape.type, int64_t{shape.qkHeads} * shape.dk);
  if (place == Place::Values) set(v, shape.type, int64_t{shape.heads} * shape.dv);
  if (place == Place::Outputs) set(dOut, shape.type, int64_t{shape.heads} * shape.dv);
  if (place == Place::Gates && (channel || shape.gate == Gate::Token)) {
    set(gates, shape.gateType, int64_t{shape.heads} * (channel ? shape.dk : 1));
  }
  const int64_t block = int64_t{shape.dk} * shape.dv, width = channel ? shape.dk : 1;
  for (int i = 0; i < segments.count; ++i) {
    if (!spans.empty() && (spans[i].begin < begin || spans[i].end > end)) continue;  // no spans: one sequence
    for (int64_t map = i; map < shape.heads * int64_t{segments.count}; map += segments.count) {
      for (auto* states : {&before, &after}) {
        for (int64_t n = 0; n < block; ++n) (*states)[static_cast<size_t>(map * block + n)] = static_cast<float>(value);
      }
      for (auto* logs : {&beforeLog, &afterLog}) {
        for (int64_t n = 0; n < width; ++n) {
          float& log = (*logs)[static_cast<size_t>(map * width + n)];
          if (!std::isinf(log)) log = std::nanf("");
        }
      }
    }
  }
  if (place != Place::States) return;
  if (begin == 0) std::fill(initial.begin(), initial.end(), static_cast<float>(value));
  if (end == shape.tokens) std::fill(dFinal.begin(), dFinal.end(), static_cast<float>(value));
}

int64_t BackwardCase::gateNumbers() const {
  const int64_t tokens = shape.batch * shape.tokens * shape.heads;
  switch (shape.gate) {
    case Gate::None:
      return 0;
    case Gate::Head:
      return shape.heads;
    case Gate::Token:
      return tokens;
    case Gate::Channel:
      break;
  }
  return tokens * shape.dk;
}

std::vector<double> BackwardCase::expectedGates() const {
  std::vector<double> result(gateNumbers(), 0);
  for (int64_t i = 0; i < reference.gateSize(); ++i) {
    const int64_t token = i / shape.dk;
    if (shape.gate == Gate::Channel) result[i] += expected.dLogDecay[i];
    if (shape.gate == Gate::Token) result[token] += expected.dLogDecay[i];
    if (shape.gate == Gate::Head) result[token % shape.heads] += expected.dLogDecay[i];
  }
  return result;
}

double BackwardCase::gateRoundings(int64_t chunk, double least) const {
  // Each head separately: heads that share q and k get copies.
  LinearShape s = reference;
  LinearInputs own = inputs;
  const int group = s.heads / s.qkHeads;
  const auto copied = [&](const std::vector<double>& values) {
    std::vector<double> copies;
    for (auto row = values.begin(); row != values.end(); row += s.dk) {
      for (int i = 0; i < group; ++i) copies.insert(copies.end(), row, row + s.dk);
    }
    return copies;
  };
  own.q = copied(inputs.q);
  own.k = copied(inputs.k);
  s.qkHeads = s.heads;
  const LinearGradients gradients = group == 1 ? expected : linearGradientReference(s, own, dOutValues, dFinalValues);
  double roundings = 0, rowByQ = 0, rowByK = 0;
  for (int64_t i = 0; i < s.gateSize(); ++i) {
    const auto counted = static_cast<double>(i / s.dk / s.heads % s.tokens % chunk + 1);  // that this token is part of
    // A head's gradient adds those of its tokens, with the same roundings; others are compared one by one.
    const double times = shape.gate == Gate::Head ? counted * counted : counted;
    const double byQ = own.q[i] * gradients.dq[i], byK = own.k[i] * gradients.dk[i];
    roundings += (byQ * byQ + byK * byK) * times;
    if (shape.gate == Gate::Channel) continue;
    // All channels of a token have the rounding error of the same score.
    rowByQ = i % s.dk == 0 ? byQ : rowByQ + byQ;
    rowByK = i % s.dk == 0 ? byK : rowByK + byK;
    if (i % s.dk == s.dk - 1) roundings += (rowByQ * rowByQ + rowByK * rowByK) * times;
  }
  return std::sqrt(roundings) / normOf(expectedGates(), least);
}

attn::LinearProblem BackwardCase::problem(const void* qData, const void* kData, const void* vData,
                                          const void* gateData) const {
  const auto dense = [&](const void* data, int heads, int width) {
    return attn::Input{data, shape.tokens * heads * width, int64_t{heads} * width, width};
  };
  attn::LinearProblem problem;
  problem.batch = shape.batch;
  problem.tokens = shape.tokens;
  problem.heads = shape.heads;
  problem.qkHeads = shape.qkHeads;
  problem.dk = shape.dk;
  problem.dv = shape.dv;
  problem.type = shape.type;
  problem.scale = static_cast<float>(reference.scale);
  problem.gate = shape.gate;
  problem.gateType = shape.gateType;
  problem.q = dense(qData, shape.qkHeads, shape.dk);
  problem.k = dense(kData, shape.qkHeads, shape.dk);
  problem.v = dense(vData, shape.heads, shape.dv);
  problem.gates = dense(gateData, shape.heads, shape.gate == Gate::Channel ? shape.dk : 1);
  return problem;
}

attn::Segments BackwardCase::segmentsAt(const attn::Span* at) const {
  attn::Segments result = segments;
  result.spans = spans.empty() ? nullptr : at;
  return result;
}

attn::Input BackwardCase::dOutput(const void* data) const {
  return {data, shape.tokens * shape.heads * shape.dv, int64_t{shape.heads} * shape.dv, shape.dv};
}

std::vector<double> valuesOf(const Bytes& bytes, int type) {
  const auto dataType = static_cast<seqparDataType_t>(type);
  std::vector<float> floats(bytes.size() / sizeOf(dataType));
  toFloat(bytes.data(), dataType, floats.data(), floats.size());
  return {floats.begin(), floats.end()};
}

double relativeError(const std::vector<double>& found, const std::vector<double>& expected, double least) {
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) difference += (found[i] - expected[i]) * (found[i] - expected[i]);
  return std::sqrt(difference) / normOf(expected, least);
}

}  // namespace seqpar::test
