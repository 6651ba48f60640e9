// The sequence on several ranks, which are threads.
#include <future>
#include <numeric>

#include "gla_case.h"

namespace {

/// Communicators of ranks in this process; destroying one waits for the others, so each needs its thread.
class Ranks {
 public:
  explicit Ranks(size_t count) : comms_(count) {
    REQUIRE(seqparCommInitAll(comms_.data(), static_cast<int>(count), nullptr) == seqparSuccess);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    each([&](size_t rank) { return std::string(seqparGetErrorString(seqparCommDestroy(comms_[rank]))); });
  }

  seqparComm_t operator[](size_t rank) const { return comms_[rank]; }
  size_t size() const { return comms_.size(); }

  /// body(rank) of all ranks at once; what they return, once all have.
  std::vector<std::string> each(const std::function<std::string(size_t)>& body) const {
    std::vector<std::future<std::string>> running;
    for (size_t rank = 0; rank < size(); ++rank) running.push_back(std::async(std::launch::async, body, rank));
    std::vector<std::string> said;
    for (size_t rank = 0; rank < size(); ++rank) said.push_back(running[rank].get());
    return said;
  }

 private:
  std::vector<seqparComm_t> comms_;
};

struct RankResult {
  std::vector<float> out, saved, final;
};

/// Runs the case with rank r holding lengths[r] tokens and checks everything that comes out.
void checkRanks(const Ranks& ranks, const GlaCase& c, const std::vector<size_t>& lengths, int algorithm,
                bool onStream) {
  std::vector<size_t> bounds(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), bounds.begin() + 1);
  REQUIRE(bounds.back() == c.tokens);
  const GlaReference reference(c, bounds);
  std::vector<RankResult> results(ranks.size());
  const auto said = ranks.each([&](size_t rank) -> std::string {
    const size_t begin = bounds[rank], end = bounds[rank + 1];
    const auto q = c.slice(c.q, c.heads * c.dk, begin, end), k = c.slice(c.k, c.heads * c.dk, begin, end);
    const auto v = c.slice(c.v, c.heads * c.dv, begin, end), g = c.slice(c.logDecay, c.heads * c.dk, begin, end);
    auto& mine = results[rank];
    mine.out.assign(v.size(), NAN);
    mine.saved.assign(c.stateSize(), NAN);
    mine.final.assign(c.stateSize(), NAN);
    auto params = c.params(end - begin);
    params.algorithm = algorithm;
    seqparStream_t stream = nullptr;
    if (onStream && seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
    // Every second rank wants no states back.
    const bool states = rank % 2 == 0;
    const auto result = seqparGlaForward(
        q.data(), k.data(), v.data(), g.data(), c.hasInitial ? c.initial.data() : nullptr, mine.out.data(),
        states ? mine.saved.data() : nullptr, states ? mine.final.data() : nullptr, &params, ranks[rank], stream);
    if (result != seqparSuccess) return seqparAttnGetLastError();
    if (onStream && seqparStreamSynchronize(stream) != seqparSuccess) return seqparGetLastError(ranks[rank]);
    if (onStream && seqparStreamDestroy(stream) != seqparSuccess) return seqparGetLastError(nullptr);
    return "";
  });
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CAPTURE(rank, bounds[rank], bounds[rank + 1]);
    REQUIRE(said[rank] == "");
    Expected mine;
    for (size_t b = 0; b < c.batch; ++b) {
      const auto row = c.heads * c.dv;
      const auto from = static_cast<std::ptrdiff_t>((b * c.tokens + bounds[rank]) * row);
      const auto to = static_cast<std::ptrdiff_t>((b * c.tokens + bounds[rank + 1]) * row);
      mine.value.insert(mine.value.end(), reference.out.value.begin() + from, reference.out.value.begin() + to);
      mine.magnitude.insert(mine.magnitude.end(), reference.out.magnitude.begin() + from,
                            reference.out.magnitude.begin() + to);
    }
    checkClose(results[rank].out, mine, c);
    if (rank % 2 == 0) {
      checkClose(results[rank].saved, reference.states[rank], c);
      checkClose(results[rank].final, reference.states[rank + 1], c);
    }
  }
}

TEST_CASE("shards of uneven, tiny and no length agree with the recurrence") {
  const auto lengths = GENERATE(std::vector<size_t>{150}, std::vector<size_t>{90, 110}, std::vector<size_t>{0, 3},
                                std::vector<size_t>{1, 1}, std::vector<size_t>{64, 65, 1}, std::vector<size_t>{0, 0, 0},
                                std::vector<size_t>{200, 0, 7}, std::vector<size_t>{17, 130, 64, 0, 33},
                                std::vector<size_t>{1, 0, 1, 0, 1});
  const unsigned seed = std::random_device{}();
  const Ranks ranks(lengths.size());
  const size_t tokens = std::accumulate(lengths.begin(), lengths.end(), size_t{0});
  for (const auto decay : {Decay::None, Decay::Weak, Decay::Strong, Decay::Mixed}) {
    for (const bool initial : {false, true}) {
      CAPTURE(lengths, static_cast<int>(decay), initial, seed);
      checkRanks(ranks, GlaCase(1, tokens, 3, 8, 12, decay, initial, seed), lengths, seqparScanAuto, false);
    }
  }
}

TEST_CASE("every algorithm carries the states of every shape, in the call and on a stream") {
  const unsigned seed = std::random_device{}();
  const Ranks ranks(3);
  for (const int algorithm : {seqparScanChain, seqparScanOneshot, seqparScanTransposed, seqparScanDoubling,
                              seqparScanLasp1, seqparScanLasp2}) {
    for (const bool onStream : {false, true}) {
      CAPTURE(algorithm, onStream, seed);
      checkRanks(ranks, GlaCase(2, 150, 2, 17, 5, Decay::Weak, true, seed), {70, 1, 79}, algorithm, onStream);
      checkRanks(ranks, GlaCase(1, 150, 1, 1, 1, Decay::Weak, true, seed), {50, 50, 50}, algorithm, onStream);
    }
  }
}

TEST_CASE("calls on one stream follow each other") {
  const Ranks ranks(2);
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  const GlaCase c(1, 128, 1, 16, 16, Decay::Weak, false, seed);
  std::vector<std::vector<float>> first(2), second(2);
  const auto said = ranks.each([&](size_t rank) -> std::string {
    const auto q = c.slice(c.q, c.dk, rank * 64, rank * 64 + 64), k = c.slice(c.k, c.dk, rank * 64, rank * 64 + 64);
    const auto v = c.slice(c.v, c.dv, rank * 64, rank * 64 + 64),
               g = c.slice(c.logDecay, c.dk, rank * 64, rank * 64 + 64);
    first[rank].assign(v.size(), NAN);
    second[rank].assign(v.size(), NAN);
    const auto params = c.params(64);
    seqparStream_t stream = nullptr;
    if (seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
    // The second call's values are the first one's outputs.
    for (const auto& [from, to] : {std::pair{v.data(), first[rank].data()},
                                   std::pair<const float*, float*>{first[rank].data(), second[rank].data()}}) {
      if (seqparGlaForward(q.data(), k.data(), from, g.data(), nullptr, to, nullptr, nullptr, &params, ranks[rank],
                           stream) != seqparSuccess) {
        return seqparAttnGetLastError();
      }
    }
    if (seqparStreamSynchronize(stream) != seqparSuccess) return seqparGetLastError(ranks[rank]);
    seqparStreamDestroy(stream);
    return "";
  });
  CHECK(said == std::vector<std::string>(2));
  GlaCase next = c;
  next.v = first[0];
  next.v.insert(next.v.end(), first[1].begin(), first[1].end());
  auto out = second[0];
  out.insert(out.end(), second[1].begin(), second[1].end());
  checkClose(out, GlaReference(next, {}).out, next);
}

TEST_CASE("a log-decay of -inf on any rank forgets what the initial state holds") {
  const unsigned seed = std::random_device{}();
  const size_t forgets = GENERATE(40, 130, 260);  // on rank 0, in rank 1's first chunk, and in its third
  CAPTURE(seed, forgets);
  const Ranks ranks(2);
  GlaCase c(1, 300, 2, 8, 12, Decay::Weak, true, seed);
  std::fill_n(c.logDecay.begin() + static_cast<std::ptrdiff_t>(forgets * c.heads * c.dk), c.heads * c.dk, -INFINITY);
  const auto run = [&](const std::vector<float>& initial) {
    std::vector<float> out;
    std::vector<std::vector<float>> parts(2), finals(2, std::vector<float>(c.stateSize()));
    const auto said = ranks.each([&](size_t rank) -> std::string {
      const size_t begin = rank == 0 ? 0 : 120, end = rank == 0 ? 120 : c.tokens;
      const auto q = c.slice(c.q, c.heads * c.dk, begin, end), k = c.slice(c.k, c.heads * c.dk, begin, end);
      const auto v = c.slice(c.v, c.heads * c.dv, begin, end), g = c.slice(c.logDecay, c.heads * c.dk, begin, end);
      parts[rank].resize(v.size());
      const auto params = c.params(end - begin);
      return seqparGlaForward(q.data(), k.data(), v.data(), g.data(), initial.data(), parts[rank].data(), nullptr,
                              finals[rank].data(), &params, ranks[rank], nullptr) == seqparSuccess
                 ? ""
                 : seqparAttnGetLastError();
    });
    CHECK(said == std::vector<std::string>(2));
    for (const auto& part : {parts[0], parts[1], finals[1]}) out.insert(out.end(), part.begin(), part.end());
    return out;
  };
  const auto expected = run(c.initial);
  const auto actual = run(std::vector<float>(c.stateSize(), NAN));
  const auto after = static_cast<std::ptrdiff_t>(forgets * c.heads * c.dv);
  CHECK(std::equal(actual.begin() + after, actual.end(), expected.begin() + after));
  CHECK(std::all_of(actual.begin(), actual.begin() + after, [](float number) { return std::isnan(number); }));
}

}  // namespace
