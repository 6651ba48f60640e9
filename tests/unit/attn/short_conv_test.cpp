// The short convolution on ranks that are threads, against its definition in fp64.
#include <cmath>
#include <numeric>
#include <random>

#include "base/convert.h"
#include "rank_threads.h"
#include "seqpar/short_conv.h"

namespace {

using namespace seqpar;
using seqpar::attn::test::RankThreads;

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

struct Numbers {
  std::vector<double> value, magnitude;
  explicit Numbers(size_t count) : value(count, 0.0), magnitude(count, 0.0) {}
  void add(size_t i, double term, double size) {
    value[i] += term;
    magnitude[i] += size;
  }
};

struct ConvReference {
  Numbers y, dx, dWeight, dBias;

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

std::string farFrom(const Numbers& expected, const std::vector<float>& found, double terms, int type, size_t offset) {
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

/// An array of a data type, as one rank has it.
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

std::vector<float> tokensOf(const ConvCase& c, const std::vector<float>& all, size_t begin, size_t end) {
  std::vector<float> part;
  for (size_t b = 0; b < c.batch; ++b) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(b * c.tokens * c.channels);
    part.insert(part.end(), at + static_cast<std::ptrdiff_t>(begin * c.channels),
                at + static_cast<std::ptrdiff_t>(end * c.channels));
  }
  return part;
}

struct Result {
  std::vector<float> y, dx, dWeight, dBias;
};

std::string run(const ConvCase& c, const std::vector<int64_t>& lengths, int rank, seqparComm_t comm, bool onStream,
                Result& result) {
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
  if (seqparShortConvCreate(&conv, &desc, comm) != seqparSuccess) return seqparAttnGetLastError();
  const Array x(c.type, tokensOf(c, c.x, begin, end)), dy(c.type, tokensOf(c, c.dy, begin, end));
  const Array weight(c.weightType, c.weight), bias(c.weightType, c.biases);
  const std::vector<float> nan((end - begin) * c.batch * c.channels, NAN);
  Array y(c.type, nan), dx(c.type, nan);
  result.dWeight.assign(c.weight.size(), NAN);
  result.dBias.assign(c.channels, NAN);
  seqparStream_t stream = nullptr;
  if (onStream && seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
  const void* const biases = c.bias ? bias.bytes.data() : nullptr;
  std::string said;
  seqparShortConvBackwardArgs_t backward = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
  backward.x = x.bytes.data();
  backward.weight = weight.bytes.data();
  backward.bias = biases;
  backward.dy = dy.bytes.data();
  backward.dx = dx.bytes.data();
  backward.dWeight = result.dWeight.data();
  backward.dBias = result.dBias.data();
  for (int repeat = 0; repeat < 2 && said.empty(); ++repeat) {
    if (seqparShortConvForward(conv, x.bytes.data(), weight.bytes.data(), biases, y.bytes.data(), stream) !=
            seqparSuccess ||
        seqparShortConvBackward(conv, &backward, stream) != seqparSuccess) {
      said = seqparAttnGetLastError();
    }
  }
  if (onStream && seqparStreamSynchronize(stream) != seqparSuccess) said = seqparGetLastError(comm);
  if (onStream) seqparStreamDestroy(stream);
  seqparShortConvDestroy(conv);
  result.y = y.get();
  result.dx = dx.get();
  return said;
}

void check(const ConvCase& c, const std::vector<int64_t>& lengths, bool onStream) {
  const RankThreads ranks(static_cast<int>(lengths.size()));
  const ConvReference expected(c);
  std::vector<Result> results(lengths.size());
  const auto said = ranks.each(
      [&](int rank) { return run(c, lengths, rank, ranks[rank], onStream, results[static_cast<size_t>(rank)]); });
  const double terms = static_cast<double>(c.width) + 20, sumTerms = terms + static_cast<double>(c.batch * c.tokens);
  std::vector<float> dWeight(c.weight.size(), 0.0f), dBias(c.channels, 0.0f), y, dx;
  size_t begin = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    REQUIRE(said[r] == "");
    const size_t count = static_cast<size_t>(lengths[r]);
    for (size_t b = 0; b < c.batch; ++b) {
      const auto part = [&](const std::vector<float>& all) {
        const auto at = all.begin() + static_cast<std::ptrdiff_t>(b * count * c.channels);
        return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count * c.channels));
      };
      const size_t offset = (b * c.tokens + begin) * c.channels;
      CAPTURE(r, b);
      CHECK(farFrom(expected.y, part(results[r].y), terms, c.type, offset) == "");
      CHECK(farFrom(expected.dx, part(results[r].dx), terms, c.type, offset) == "");
    }
    for (size_t i = 0; i < dWeight.size(); ++i) dWeight[i] += results[r].dWeight[i];
    for (size_t i = 0; i < dBias.size(); ++i) dBias[i] += results[r].dBias[i];
    begin += count;
  }
  CHECK(farFrom(expected.dWeight, dWeight, sumTerms, seqparFloat32, 0) == "");
  CHECK(farFrom(expected.dBias, dBias, sumTerms, seqparFloat32, 0) == "");
}

TEST_CASE("short convolutions of all widths agree with their definition on any number of ranks") {
  const auto lengths = GENERATE(std::vector<int64_t>{70}, std::vector<int64_t>{66, 3}, std::vector<int64_t>{0, 2, 130},
                                std::vector<int64_t>{5, 0, 1, 80}, std::vector<int64_t>{1, 1, 1, 1, 1, 1, 2, 9});
  const unsigned seed = std::random_device{}();
  for (size_t width = 1; width <= SEQPAR_SHORT_CONV_WIDTH; ++width) {
    ConvCase c;
    c.tokens = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    c.width = width;
    c.batch = 1 + width % 2;
    c.channels = width % 3 == 0 ? 131 : 5;
    c.silu = width % 2 == 0;
    c.bias = width % 4 < 2;
    c.type = static_cast<int>(width % 3);
    c.weightType = static_cast<int>((width / 2) % 3);
    c.fill(seed);
    CAPTURE(lengths, width, seed);
    check(c, lengths, width % 3 == 1);
  }
}

TEST_CASE("a short convolution stops where a packed sequence begins") {
  const unsigned seed = std::random_device{}();
  for (const auto& starts : {std::vector<int64_t>{0, 90}, {0, 0, 1, 2, 40, 43, 43, 90}, {0, 50, 90}}) {
    for (const auto& lengths : {std::vector<int64_t>{90}, {41, 49}, {50, 0, 40}, {1, 1, 39, 2, 47}}) {
      ConvCase c;
      c.tokens = 90;
      c.channels = 3;
      c.width = 5;
      c.cuSeqlens = starts;
      c.fill(seed);
      CAPTURE(starts, lengths, seed);
      check(c, lengths, false);
    }
  }
}

TEST_CASE("what is wrong with a short convolution's arguments is named") {
  seqparShortConv_t conv = nullptr;
  const auto refused = [&](auto change, const char* word) {
    seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
    desc.channels = 2;
    desc.tokens = 4;
    change(desc);
    CHECK(seqparShortConvCreate(&conv, &desc, nullptr) == seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(word));
    CHECK(conv == nullptr);
  };
  refused([](auto& d) { d.width = 9; }, "width is 9, expected 1 to 8");
  refused([](auto& d) { d.width = 0; }, "width is 0");
  refused([](auto& d) { d.channels = 0; }, "channels is 0");
  refused([](auto& d) { d.tokens = -1; }, "tokens is -1");
  refused([](auto& d) { d.silu = 2; }, "silu is 2");
  refused([](auto& d) { d.dataType = 3; }, "dataType is 3");
  refused([](auto& d) { d.sequences = 1; }, "cuSeqlens is NULL");
  refused([](auto& d) { d.magic = 7; }, "magic");
  seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
  desc.channels = 2;
  desc.tokens = 4;
  desc.training = 0;
  REQUIRE(seqparShortConvCreate(&conv, &desc, nullptr) == seqparSuccess);
  std::vector<float> x(8), y(8), weight(8);
  CHECK(seqparShortConvForward(conv, nullptr, weight.data(), nullptr, y.data(), nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("x is NULL"));
  CHECK(seqparShortConvForward(conv, x.data(), weight.data(), nullptr, x.data() + 1, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("overlaps"));
  seqparShortConvBackwardArgs_t backward = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
  backward.x = backward.dy = x.data();
  backward.weight = weight.data();
  backward.dx = y.data();
  CHECK(seqparShortConvBackward(conv, &backward, nullptr) == seqparInvalidUsage);
  CHECK(seqparShortConvDestroy(conv) == seqparSuccess);
  CHECK(seqparShortConvDestroy(conv) == seqparInvalidArgument);
  desc.training = 1;
  REQUIRE(seqparShortConvCreate(&conv, &desc, nullptr) == seqparSuccess);
  const auto refusedBackward = [&](const auto& change, const char* word) {
    auto bad = backward;
    change(bad);
    CHECK(seqparShortConvBackward(conv, &bad, nullptr) == seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(word));
  };
  refusedBackward([](auto& args) { args.magic = 7; }, "args->magic is 7");
  refusedBackward([](auto& args) { args.size = 8; }, "args->size is 8");
  refusedBackward([](auto& args) { args.dy = nullptr; }, "dy is NULL");
  refusedBackward([](auto& args) { args.dx = const_cast<void*>(args.x); }, "overlaps");
  CHECK(seqparShortConvBackward(conv, nullptr, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("args is NULL"));
  CHECK(seqparShortConvDestroy(conv) == seqparSuccess);
}

}  // namespace
