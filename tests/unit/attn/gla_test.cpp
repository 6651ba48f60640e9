// One rank, the whole sequence.
#include "gla_case.h"

namespace {

void checkOneRank(const GlaCase& c) {
  const GlaReference reference(c, {0, c.tokens});
  std::vector<float> out(c.v.size(), NAN), saved(c.stateSize(), NAN), final(c.stateSize(), NAN);
  const auto params = c.params(c.tokens);
  const auto result =
      seqparGlaForward(c.q.data(), c.k.data(), c.v.data(), c.logDecay.data(), c.hasInitial ? c.initial.data() : nullptr,
                       out.data(), saved.data(), final.data(), &params, nullptr, nullptr);
  INFO(seqparAttnGetLastError());
  REQUIRE(result == seqparSuccess);
  checkClose(out, reference.out, c);
  checkClose(final, reference.states[1], c);
  const auto initial = c.hasInitial ? c.initial : std::vector<float>(c.stateSize(), 0.0f);
  CHECK(saved == initial);
}

TEST_CASE("one rank agrees with the recurrence at every length around the chunks") {
  const size_t tokens = GENERATE(0, 1, 2, 15, 16, 17, 63, 64, 65, 129, 300);
  const auto decay = GENERATE(Decay::None, Decay::Weak, Decay::Strong, Decay::Mixed);
  const bool initial = GENERATE(false, true);
  const unsigned seed = std::random_device{}();
  CAPTURE(tokens, static_cast<int>(decay), initial, seed);
  checkOneRank(GlaCase(1, tokens, 2, 16, 24, decay, initial, seed));
}

TEST_CASE("one rank agrees with the recurrence for every shape") {
  struct Shape {
    size_t batch, heads, dk, dv;
  };
  const auto shape = GENERATE(Shape{1, 1, 1, 1}, Shape{1, 3, 7, 5}, Shape{2, 2, 33, 1}, Shape{3, 1, 1, 33},
                              Shape{2, 3, 16, 40}, Shape{1, 2, 128, 64});
  const auto decay = GENERATE(Decay::Weak, Decay::Mixed);
  const unsigned seed = std::random_device{}();
  CAPTURE(shape.batch, shape.heads, shape.dk, shape.dv, static_cast<int>(decay), seed);
  checkOneRank(GlaCase(shape.batch, 150, shape.heads, shape.dk, shape.dv, decay, true, seed));
}

TEST_CASE("the scale is the caller's, or 1/sqrt(dk)") {
  GlaCase c(1, 70, 1, 9, 4, Decay::Weak, false, 5);
  checkOneRank(c);
  c.scale = -2.5f;
  checkOneRank(c);
}

TEST_CASE("a log-decay of -inf forgets NaN and infinity in the initial state") {
  const unsigned seed = std::random_device{}();
  const size_t forgets = GENERATE(0, 5, 63, 64, 140);
  const float poison = GENERATE(static_cast<float>(NAN), static_cast<float>(INFINITY));
  CAPTURE(seed, forgets, poison);
  GlaCase c(1, 150, 2, 8, 12, Decay::Weak, true, seed);
  std::fill_n(c.logDecay.begin() + static_cast<std::ptrdiff_t>(forgets * c.heads * c.dk), c.heads * c.dk, -INFINITY);
  GlaCase poisoned = c;
  for (auto& number : poisoned.initial) number = poison;
  const auto run = [](const GlaCase& given, std::vector<float>& out, std::vector<float>& final) {
    out.resize(given.v.size());
    final.resize(given.stateSize());
    const auto params = given.params(given.tokens);
    REQUIRE(seqparGlaForward(given.q.data(), given.k.data(), given.v.data(), given.logDecay.data(),
                             given.initial.data(), out.data(), nullptr, final.data(), &params, nullptr,
                             nullptr) == seqparSuccess);
  };
  std::vector<float> out, final, expectedOut, expectedFinal;
  run(c, expectedOut, expectedFinal);
  run(poisoned, out, final);
  CHECK(final == expectedFinal);
  const auto after = static_cast<std::ptrdiff_t>(forgets * c.heads * c.dv);
  CHECK(std::equal(out.begin() + after, out.end(), expectedOut.begin() + after));
  CHECK(std::none_of(out.begin(), out.begin() + after, [](float number) { return std::isfinite(number); }));
}

TEST_CASE("a sequence cut in two and joined by its state gives the same outputs") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  const GlaCase c(2, 100, 2, 8, 8, Decay::Weak, true, seed);
  const GlaReference reference(c, {c.tokens});
  std::vector<float> state = c.initial, next(c.stateSize());
  std::vector<float> out(c.v.size());
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 37}, {37, 100}}) {
    const auto q = c.slice(c.q, c.heads * c.dk, begin, end), k = c.slice(c.k, c.heads * c.dk, begin, end);
    const auto v = c.slice(c.v, c.heads * c.dv, begin, end), g = c.slice(c.logDecay, c.heads * c.dk, begin, end);
    std::vector<float> part(v.size());
    const auto params = c.params(end - begin);
    REQUIRE(seqparGlaForward(q.data(), k.data(), v.data(), g.data(), state.data(), part.data(), nullptr, next.data(),
                             &params, nullptr, nullptr) == seqparSuccess);
    state = next;
    const size_t row = c.heads * c.dv;
    for (size_t b = 0; b < c.batch; ++b) {
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(b * (end - begin) * row), (end - begin) * row,
                  out.begin() + static_cast<std::ptrdiff_t>((b * c.tokens + begin) * row));
    }
  }
  checkClose(out, reference.out, c);
  checkClose(state, reference.states[0], c);
}

TEST_CASE("work on a host stream gives the bits that the call gives") {
  const GlaCase c(1, 200, 2, 16, 16, Decay::Weak, true, 11);
  const auto params = c.params(c.tokens);
  std::vector<float> now(c.v.size()), later(c.v.size());
  const auto run = [&](std::vector<float>& out, seqparStream_t stream) {
    REQUIRE(seqparGlaForward(c.q.data(), c.k.data(), c.v.data(), c.logDecay.data(), c.initial.data(), out.data(),
                             nullptr, nullptr, &params, nullptr, stream) == seqparSuccess);
  };
  run(now, nullptr);
  seqparStream_t stream = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  run(later, stream);
  CHECK(seqparStreamSynchronize(stream) == seqparSuccess);
  CHECK(seqparStreamDestroy(stream) == seqparSuccess);
  CHECK(now == later);
}

}  // namespace
