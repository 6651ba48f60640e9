// The short convolution on hosts against its definition, and its kernels' program, run on the CPU.
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/attn/short_conv/run.h"
#include "short_conv_check.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;              // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

/// Runs all stretches of a launch one after the other.
template <class T, int W, int V>
void runKernels(attn::short_conv::ConvTask& task, float* edge) {
  using namespace attn::short_conv;  // NOLINT(google-build-using-namespace)
  const Stretches forward = forwardStretches(task.tokens), backward = backwardStretches(task);
  std::vector<float> terms(termsSize(task) / sizeof(float), NAN);
  task.terms = terms.data();
  task.edge = edge;
  for (int64_t b = 0; b < task.batch; ++b) {
    for (int64_t channel = 0; channel < task.channels; channel += V) {
      Run<T, W, V> run(task, b, channel);
      if (edge != nullptr) {
        run.edge();
        continue;
      }
      for (int64_t begin = 0; begin < task.tokens; begin += forward.tokens) {
        run.forward(begin, std::min(begin + forward.tokens, task.tokens));
      }
      for (int64_t s = 0; s < backward.count; ++s) {
        run.backward(s * backward.tokens, std::min((s + 1) * backward.tokens, task.tokens), b * backward.count + s);
      }
    }
  }
  for (int64_t i = 0; edge == nullptr && i < (task.width + 1) * task.channels; ++i) {
    addTerms(task, task.batch * backward.count, i);
  }
}
template <class T>
void runKernels(attn::short_conv::ConvTask& task, float* edge) {
  if (task.width <= 4) {
    task.channels % 4 == 0 ? runKernels<T, 4, 4>(task, edge) : runKernels<T, 4, 1>(task, edge);
  } else {
    task.channels % 4 == 0 ? runKernels<T, 8, 4>(task, edge) : runKernels<T, 8, 1>(task, edge);
  }
}
void runKernels(attn::short_conv::ConvTask& task, float* edge) {
  if (task.type == seqparFloat32) return runKernels<attn::short_conv::Fp32>(task, edge);
  if (task.type == seqparFloat16) return runKernels<attn::short_conv::Fp16>(task, edge);
  runKernels<attn::short_conv::Bf16>(task, edge);
}

TEST_CASE("short convolutions of all widths agree with their definition on any number of ranks") {
  const auto lengths = GENERATE(std::vector<int64_t>{70}, std::vector<int64_t>{66, 3}, std::vector<int64_t>{0, 2, 130},
                                std::vector<int64_t>{5, 0, 1, 80}, std::vector<int64_t>{1, 1, 1, 1, 1, 1, 2, 9});
  const seqpar::test::Seed seed;
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
    CAPTURE(lengths, width);
    check(RankThreads(static_cast<int>(lengths.size())), c, lengths, {.onStream = width % 3 == 1});
  }
}

TEST_CASE("a short convolution stops at the start of a packed sequence") {
  const seqpar::test::Seed seed;
  for (const auto& starts : {std::vector<int64_t>{0, 90}, {0, 0, 1, 2, 40, 43, 43, 90}, {0, 50, 90}}) {
    for (const auto& lengths : {std::vector<int64_t>{90}, {41, 49}, {50, 0, 40}, {1, 1, 39, 2, 47}}) {
      ConvCase c;
      c.tokens = 90;
      c.channels = 3;
      c.width = 5;
      c.cuSeqlens = starts;
      c.fill(seed);
      CAPTURE(starts, lengths);
      check(RankThreads(static_cast<int>(lengths.size())), c, lengths, {});
    }
  }
}

/// Two shards that copy their halos from each other directly; batch 1.
void checkKernels(const ConvCase& c, size_t border) {
  const ConvReference expected(c);
  const size_t halo = c.width - 1, borders[] = {0, border, c.tokens};
  const std::vector<float> zeros(8 * c.channels);
  const Array whole(c.type, c.x), wholeGradient(c.type, c.dy), weight(c.weightType, c.weight);
  const Array bias(c.weightType, c.biases), zero(c.type, zeros);
  std::vector<int64_t> starts = c.cuSeqlens;
  if (starts.empty()) starts = {0, static_cast<int64_t>(c.tokens)};
  std::vector<uint8_t> before(c.tokens), behind(c.tokens);
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
      before[static_cast<size_t>(t)] =
          static_cast<uint8_t>(std::min<int64_t>(static_cast<int64_t>(halo), t - starts[s]));
      behind[static_cast<size_t>(t)] =
          static_cast<uint8_t>(std::min<int64_t>(static_cast<int64_t>(halo), starts[s + 1] - 1 - t));
    }
  }
  std::vector<float> edge(8 * c.channels), dWeight(c.weight.size()), dBias(c.channels);
  for (size_t shard = 2; shard-- > 0;) {
    const size_t begin = borders[shard], count = borders[shard + 1] - begin, row = c.channels * sizeOf(whole.type);
    const std::vector<float> nan(count * c.channels, NAN);
    Array y(c.type, nan), dx(c.type, nan);
    std::vector<float> dWeights(dWeight.size(), NAN), dBiases(dBias.size(), NAN);
    attn::short_conv::ConvTask task;
    task.tokens = static_cast<int64_t>(count);
    task.channels = static_cast<int64_t>(c.channels);
    task.width = static_cast<int>(c.width);
    task.silu = c.silu;
    task.type = c.type;
    task.weightType = c.weightType;
    task.before = before.data() + begin;
    task.behind = behind.data() + begin;
    task.x = whole.bytes.data() + begin * row;
    task.dy = wholeGradient.bytes.data() + begin * row;
    task.weight = weight.bytes.data();
    task.bias = c.bias ? bias.bytes.data() : nullptr;
    task.left = shard == 0 ? zero.bytes.data() : whole.bytes.data() + (begin - halo) * row;
    task.right = shard == 0 ? edge.data() : zeros.data();
    task.y = y.bytes.data();
    task.dx = dx.bytes.data();
    task.dWeight = dWeights.data();
    task.dBias = dBiases.data();
    task.edgeTokens = static_cast<int64_t>(std::min(count, halo));
    runKernels(task, nullptr);
    if (shard == 1) runKernels(task, edge.data());
    const double terms = static_cast<double>(c.width) + 20;
    CAPTURE(shard);
    CHECK(farFrom(expected.y, y.get(), terms, c.type, begin * c.channels) == "");
    CHECK(farFrom(expected.dx, dx.get(), terms, c.type, begin * c.channels) == "");
    for (size_t i = 0; i < dWeight.size(); ++i) dWeight[i] += dWeights[i];
    for (size_t i = 0; i < dBias.size(); ++i) dBias[i] += dBiases[i];
  }
  const double sumTerms = static_cast<double>(c.width + c.tokens) + 20;
  CHECK(farFrom(expected.dWeight, dWeight, sumTerms, seqparFloat32, 0) == "");
  CHECK(farFrom(expected.dBias, dBias, sumTerms, seqparFloat32, 0) == "");
}

TEST_CASE("the GPUs' program of the short convolution agrees with its definition") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (size_t width = 1; width <= SEQPAR_SHORT_CONV_WIDTH; ++width) {
    for (const size_t channels : {size_t{3}, size_t{8}}) {
      ConvCase c;
      c.tokens = 20 + random() % 150;
      c.channels = channels;
      c.width = width;
      c.silu = random() % 2 == 0;
      c.bias = random() % 2 == 0;
      c.type = static_cast<int>(random() % 3);
      c.weightType = static_cast<int>(random() % 3);
      if (random() % 2 == 0)
        c.cuSeqlens = {0, 0, 3, static_cast<int64_t>(c.tokens / 2), static_cast<int64_t>(c.tokens)};
      c.fill(seed);
      const size_t border = 8 + random() % (c.tokens - 16);
      CAPTURE(width, channels, c.tokens, border, c.type, c.weightType, c.silu, c.cuSeqlens);
      checkKernels(c, border);
    }
  }
}

TEST_CASE("invalid arguments of a short convolution are named") {
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
  static const int64_t kDescending[] = {0, 3, 2, 4}, kNegative[] = {-1};
  refused([](auto& d) { d.sequences = 3, d.cuSeqlens = kDescending; },
          "cuSeqlens[2] is 2, expected at least cuSeqlens[1]");
  refused([](auto& d) { d.sequences = INT64_MAX, d.cuSeqlens = kDescending; }, "sequences is 9223372036854775807");
  refused([](auto& d) { d.tokensOfRanks = kNegative; }, "tokensOfRanks[0] is -1");
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
  CHECK(seqparShortConvForward(conv, x.data(), weight.data(), nullptr, y.data(), &x) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::StartsWith("seqparShortConvForward: stream is "));
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

TEST_CASE("destroying a short convolution waits for its work on a stream") {
  seqparStream_t stream = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  std::atomic<bool> gate{false};
  const auto waitFor = [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); };
  REQUIRE(seqparStreamLaunch(stream, waitFor, &gate) == seqparSuccess);
  seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
  desc.channels = 2;
  desc.tokens = 4;
  desc.silu = 0;
  seqparShortConv_t conv = nullptr;
  REQUIRE(seqparShortConvCreate(&conv, &desc, nullptr) == seqparSuccess);
  const std::vector<float> x(8, 1), weight(8, 1);
  std::vector<float> y(8);
  CHECK(seqparShortConvForward(conv, x.data(), weight.data(), nullptr, y.data(), stream) == seqparSuccess);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate = true;
    gate.notify_all();
  });
  CHECK(seqparShortConvDestroy(conv) == seqparSuccess);
  CHECK(y == std::vector<float>{1, 1, 2, 2, 3, 3, 4, 4});
  opener.join();
  CHECK(seqparStreamDestroy(stream) == seqparSuccess);
}

}  // namespace
