// The short convolution on ranks that are threads, against its definition in fp64.
#pragma once

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "base/convert.h"
#include "placement.h"
#include "rank_threads.h"
#include "seqpar/short_conv.h"

namespace seqpar::attn::test {

struct ConvCase {
  size_t batch = 1, tokens = 0, channels = 1, width = 4;
  bool silu = true, bias = true;
  int type = seqparFloat32, weightType = seqparFloat32;
  std::vector<int64_t> cuSeqlens;
  std::vector<float> x, weight, biases, dy;

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto numbers = [&](std::vector<float>& to, size_t count, int roundTo) {
      to.resize(count);
      for (auto& number : to) number = normal(random);
      std::vector<std::byte> rounded(count * 4);
      fromFloat(to.data(), rounded.data(), static_cast<seqparDataType_t>(roundTo), count);
      toFloat(rounded.data(), static_cast<seqparDataType_t>(roundTo), to.data(), count);
    };
    numbers(x, batch * tokens * channels, type);
    numbers(dy, x.size(), type);
    numbers(weight, channels * width, weightType);
    numbers(biases, channels, weightType);
  }
};

struct ConvNumbers {
  std::vector<double> value, magnitude;
  explicit ConvNumbers(size_t count) : value(count, 0.0), magnitude(count, 0.0) {}
  void add(size_t i, double term, double size) {
    value[i] += term;
    magnitude[i] += size;
  }
};

struct ConvReference {
  ConvNumbers y, dx, dWeight, dBias;

  explicit ConvReference(const ConvCase& c)
      : y(c.x.size()), dx(c.x.size()), dWeight(c.weight.size()), dBias(c.channels) {
    std::vector<int64_t> starts = c.cuSeqlens;
    if (starts.empty()) starts = {0, static_cast<int64_t>(c.tokens)};
    for (size_t b = 0; b < c.batch; ++b) {
      for (size_t s = 0; s + 1 < starts.size(); ++s) {
        for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
          for (size_t channel = 0; channel < c.channels; ++channel) one(c, b, t, starts[s], channel);
        }
      }
    }
  }

 private:
  void one(const ConvCase& c, size_t b, int64_t t, int64_t start, size_t channel) {
    const auto at = [&](int64_t token) { return (b * c.tokens + static_cast<size_t>(token)) * c.channels + channel; };
    const auto weightOf = [&](int64_t j) { return channel * c.width + c.width - 1 - static_cast<size_t>(j); };
    double z = c.bias ? static_cast<double>(c.biases[channel]) : 0, size = std::abs(z);
    const auto taps = std::min(static_cast<int64_t>(c.width), t - start + 1);
    for (int64_t j = 0; j < taps; ++j) {
      const double term = static_cast<double>(c.weight[weightOf(j)]) * static_cast<double>(c.x[at(t - j)]);
      z += term;
      size += std::abs(term);
    }
    const double sigmoid = c.silu ? 1 / (1 + std::exp(-z)) : 1;
    // |d SiLU / dz| is below 1.1, |d2 SiLU / dz2| is at most 0.5.
    y.add(at(t), z * sigmoid, 1.1 * size + std::abs(z));
    const double dy = static_cast<double>(c.dy[at(t)]);
    const double slope = c.silu ? sigmoid * (1 + z * (1 - sigmoid)) : 1;
    const double dz = dy * slope, dzSize = std::abs(dy) * (2 + 2 * std::abs(z) + size);
    dBias.add(channel, dz, dzSize);
    for (int64_t j = 0; j < taps; ++j) {
      const auto weight = static_cast<double>(c.weight[weightOf(j)]), x = static_cast<double>(c.x[at(t - j)]);
      dx.add(at(t - j), weight * dz, std::abs(weight) * dzSize);
      dWeight.add(weightOf(j), x * dz, std::abs(x) * dzSize);
    }
  }
};

inline std::string farFrom(const ConvNumbers& expected, const std::vector<float>& found, double terms, int type,
                           size_t offset) {
  const double kHalfUlp[] = {0.0, 0x1p-11, 0x1p-8}, kSmallest[] = {0x1p-126, 0x1p-24, 0x1p-126};
  for (size_t i = 0; i < found.size(); ++i) {
    const double value = expected.value[offset + i];
    const double allowed =
        terms * 0x1p-24 * expected.magnitude[offset + i] + kHalfUlp[type] * std::abs(value) + kSmallest[type];
    if (!(std::abs(static_cast<double>(found[i]) - value) <= allowed)) {
      return std::to_string(i) + ": " + std::to_string(found[i]) + ", expected " + std::to_string(value);
    }
  }
  return "";
}

/// One rank's part of an array of a data type.
struct Array {
  seqparDataType_t type;
  std::vector<std::byte> bytes;
  Array(int dataType, const std::vector<float>& numbers)
      : type(static_cast<seqparDataType_t>(dataType)), bytes(numbers.size() * sizeOf(type)) {
    fromFloat(numbers.data(), bytes.data(), type, numbers.size());
  }
  std::vector<float> get() const {
    std::vector<float> numbers(bytes.size() / sizeOf(type));
    toFloat(bytes.data(), type, numbers.data(), numbers.size());
    return numbers;
  }
};

inline std::vector<float> tokensOf(const ConvCase& c, const std::vector<float>& all, size_t begin, size_t end) {
  std::vector<float> part;
  for (size_t b = 0; b < c.batch; ++b) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(b * c.tokens * c.channels);
    part.insert(part.end(), at + static_cast<std::ptrdiff_t>(begin * c.channels),
                at + static_cast<std::ptrdiff_t>(end * c.channels));
  }
  return part;
}

struct ConvResult {
  std::vector<float> y, dx, dWeight, dBias;
};

struct ConvOptions {
  bool onStream = false;
  const Placement* placement = nullptr;
  std::function<void(int rank)> beforeCreate = [](int) {};
};

/// Runs forward and backward of rank `rank` twice. Returns an error's text, or "".
inline std::string runConv(const ConvCase& c, const std::vector<int64_t>& lengths, int rank, seqparComm_t comm,
                           const ConvOptions& options, ConvResult& result) {
  const auto begin = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0}));
  const size_t end = begin + static_cast<size_t>(lengths[static_cast<size_t>(rank)]);
  seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
  desc.batch = static_cast<int64_t>(c.batch);
  desc.tokensOfRanks = lengths.data();
  desc.sequences = c.cuSeqlens.empty() ? 0 : static_cast<int64_t>(c.cuSeqlens.size()) - 1;
  desc.cuSeqlens = c.cuSeqlens.data();
  desc.channels = static_cast<int64_t>(c.channels);
  desc.width = static_cast<int>(c.width);
  desc.silu = c.silu ? 1 : 0;
  desc.dataType = c.type;
  desc.weightType = c.weightType;
  seqparShortConv_t conv = nullptr;
  options.beforeCreate(rank);
  if (seqparShortConvCreate(&conv, &desc, comm) != seqparSuccess) return seqparAttnGetLastError();
  const Array x(c.type, tokensOf(c, c.x, begin, end)), dy(c.type, tokensOf(c, c.dy, begin, end));
  const Array weight(c.weightType, c.weight), bias(c.weightType, c.biases);
  const std::vector<float> nan((end - begin) * c.batch * c.channels, NAN);
  Array y(c.type, nan), dx(c.type, nan);
  result.dWeight.assign(c.weight.size(), NAN);
  result.dBias.assign(c.channels, NAN);
  const auto place = [&](const Array& array) {
    return Placed(const_cast<std::byte*>(array.bytes.data()), array.bytes.size(), options.placement, rank);
  };
  const auto placeNumbers = [&](std::vector<float>& numbers) {
    return Placed(numbers.data(), numbers.size() * sizeof(float), options.placement, rank);
  };
  const Placed xs = place(x), dys = place(dy), weights = place(weight), biases = place(bias), ys = place(y);
  const Placed dxs = place(dx), dWeights = placeNumbers(result.dWeight), dBiases = placeNumbers(result.dBias);
  seqparShortConvBackwardArgs_t backward = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
  backward.x = xs.data();
  backward.weight = weights.data();
  backward.bias = c.bias ? biases.data() : nullptr;
  backward.dy = dys.data();
  backward.dx = dxs.data();
  backward.dWeight = static_cast<float*>(dWeights.data());
  backward.dBias = static_cast<float*>(dBiases.data());
  const auto calls = [&](void* stream) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      if (seqparShortConvForward(conv, backward.x, backward.weight, backward.bias, ys.data(), stream) !=
              seqparSuccess ||
          seqparShortConvBackward(conv, &backward, stream) != seqparSuccess) {
        return std::string(seqparAttnGetLastError());
      }
    }
    return std::string();
  };
  std::string said;
  if (options.placement != nullptr) {
    options.placement->barrier();
    said = options.placement->run(rank, calls);
    options.placement->barrier();
    for (const auto* array : {&ys, &dxs, &dWeights, &dBiases}) array->fetch();
  } else {
    seqparStream_t stream = nullptr;
    if (options.onStream && seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
    said = calls(stream);
    if (options.onStream && seqparStreamSynchronize(stream) != seqparSuccess) said = seqparGetLastError(comm);
    if (options.onStream) seqparStreamDestroy(stream);
  }
  seqparShortConvDestroy(conv);
  result.y = y.get();
  result.dx = dx.get();
  return said;
}

/// "" or the first difference of all ranks' results.
inline std::string differences(const ConvCase& c, const ConvReference& expected, const std::vector<int64_t>& lengths,
                               const std::vector<ConvResult>& results) {
  const double terms = static_cast<double>(c.width) + 20, sumTerms = terms + static_cast<double>(c.batch * c.tokens);
  std::vector<float> dWeight(c.weight.size(), 0.0f), dBias(c.channels, 0.0f);
  std::string text;
  const auto note = [&](const std::string& name, const std::string& far) {
    if (text.empty() && !far.empty()) text = name + ": " + far;
  };
  size_t begin = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    const size_t count = static_cast<size_t>(lengths[r]);
    for (size_t b = 0; b < c.batch; ++b) {
      const auto part = [&](const std::vector<float>& all) {
        const auto at = all.begin() + static_cast<std::ptrdiff_t>(b * count * c.channels);
        return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count * c.channels));
      };
      const size_t offset = (b * c.tokens + begin) * c.channels;
      const std::string rank = " of rank " + std::to_string(r);
      note("y" + rank, farFrom(expected.y, part(results[r].y), terms, c.type, offset));
      note("dx" + rank, farFrom(expected.dx, part(results[r].dx), terms, c.type, offset));
    }
    for (size_t i = 0; i < dWeight.size(); ++i) dWeight[i] += results[r].dWeight[i];
    for (size_t i = 0; i < dBias.size(); ++i) dBias[i] += results[r].dBias[i];
    begin += count;
  }
  note("dWeight", farFrom(expected.dWeight, dWeight, sumTerms, seqparFloat32, 0));
  note("dBias", farFrom(expected.dBias, dBias, sumTerms, seqparFloat32, 0));
  return text;
}

inline void check(const RankThreads& ranks, const ConvCase& c, const std::vector<int64_t>& lengths,
                  const ConvOptions& options) {
  const ConvReference expected(c);
  std::vector<ConvResult> results(lengths.size());
  const auto said = ranks.each(
      [&](int rank) { return runConv(c, lengths, rank, ranks[rank], options, results[static_cast<size_t>(rank)]); });
  for (const auto& text : said) REQUIRE(text == "");
  CHECK(differences(c, expected, lengths, results) == "");
}

}  // namespace seqpar::attn::test
