// No fault looks like a result: passes on streams while a rank aborts, gives up, fails or differs.
#include <chrono>
#include <numeric>
#include <thread>

#include "attn/plan/registry.h"
#include "linear_call.h"
#include "naive_kernel.h"
#include "short_conv_check.h"
#include "softmax_features.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)
using seqpar::attn::test::farFrom;
using seqpar::test::farFrom;
using seqpar::test::LinearReference;

constexpr int kRanks = 4;

/// An operator with expected results. Runs a rank's part of a forward and a backward pass on a stream and returns "" or
/// the error; checks the results of the ranks that returned "".
struct Operator {
  std::string name;
  std::function<std::string(int rank, seqparComm_t comm)> run;
  std::function<std::string(const std::vector<std::string>& said)> wrong;
};

Operator softmaxOperator(const seqpar::attn::AlgorithmRow& row, uint64_t seed,
                         std::function<RunOptions(int rank)> optionsOf = nullptr) {
  SoftmaxSpec s;
  s.tokens = 96;
  s.heads = 4;
  s.kvHeads = 4;
  s.headDim = s.valueDim = 8;
  s.mask = seqparAttnCausal;
  s.algorithm = row.id;
  struct Job {
    SoftmaxCase c;
    SoftmaxAnswer answer;
    std::unique_ptr<SoftmaxResult> result;
    std::vector<std::vector<float>> dSinks{kRanks};
    explicit Job(const SoftmaxSpec& spec, uint64_t seed) : c(spec, seed), answer(c) {}
  };
  auto job = std::make_shared<Job>(s, seed);
  job->result = std::make_unique<SoftmaxResult>(job->c, kElsewhere);
  return {row.name,
          [job, optionsOf](int rank, seqparComm_t comm) {
            RunOptions options = optionsOf ? optionsOf(rank) : RunOptions();
            options.onStream = true;
            return runRank(job->c, rank, kRanks, comm, options, *job->result, job->dSinks[static_cast<size_t>(rank)]);
          },
          [job](const std::vector<std::string>&) {
            const auto text = differences(job->c, job->answer, *job->result, kRanks);
            *job->result = SoftmaxResult(job->c, kElsewhere);
            return text;
          }};
}

Operator linearOperator(int algorithm, uint64_t seed) {
  struct Job {
    LinearCase c;
    std::vector<int64_t> lengths{70, 130, 3, 90};
    std::unique_ptr<LinearReference> reference;
    std::vector<LinearResult> results{kRanks};
  };
  auto job = std::make_shared<Job>();
  LinearCase& c = job->c;
  c.tokens = static_cast<size_t>(std::accumulate(job->lengths.begin(), job->lengths.end(), int64_t{0}));
  c.heads = 2;
  c.dk = c.dv = 8;
  c.keyHeads = 2;
  c.fill(static_cast<unsigned>(seed));
  job->reference = std::make_unique<LinearReference>(c, std::vector<size_t>{});
  return {seqparAttnAlgorithmName(algorithm),
          [job, algorithm](int rank, seqparComm_t comm) {
            LinearOptions options;
            options.algorithm = algorithm;
            options.onStream = true;
            return runLinear(job->c, job->lengths, rank, comm, options, job->results[static_cast<size_t>(rank)]);
          },
          [job](const std::vector<std::string>& said) -> std::string {
            size_t begin = 0;
            for (size_t rank = 0; rank < kRanks; ++rank) {
              const size_t end = begin + static_cast<size_t>(job->lengths[rank]);
              const auto& found = job->results[rank];
              const auto& expected = *job->reference;
              const double terms = 64 * static_cast<double>(job->c.tokens);
              const auto far = [&](const char* name, const auto& all, const std::vector<float>& got, size_t row) {
                const auto text = farFrom(tokensOf(job->c, all, row, begin, end), got, terms, seqparFloat32);
                return text.empty() ? text : name + (": " + text);
              };
              if (said[rank].empty()) {
                for (const auto& text : {far("out", expected.out, found.out, 16), far("dq", expected.dq, found.dq, 16),
                                         far("dk", expected.dk, found.dk, 16), far("dv", expected.dv, found.dv, 16)}) {
                  if (!text.empty()) return "rank " + std::to_string(rank) + ", " + text;
                }
              }
              begin = end;
            }
            return "";
          }};
}

Operator convOperator(uint64_t seed) {
  struct Job {
    ConvCase c;
    std::vector<int64_t> lengths{70, 130, 3, 90};
    std::unique_ptr<ConvReference> reference;
    std::vector<ConvResult> results{kRanks};
  };
  auto job = std::make_shared<Job>();
  job->c.tokens = static_cast<size_t>(std::accumulate(job->lengths.begin(), job->lengths.end(), int64_t{0}));
  job->c.channels = 64;
  job->c.fill(static_cast<unsigned>(seed));
  job->reference = std::make_unique<ConvReference>(job->c);
  return {"short convolution",
          [job](int rank, seqparComm_t comm) {
            ConvOptions options;
            options.onStream = true;
            return runConv(job->c, job->lengths, rank, comm, options, job->results[static_cast<size_t>(rank)]);
          },
          [job](const std::vector<std::string>& said) -> std::string {
            size_t offset = 0;
            for (size_t rank = 0; rank < kRanks; ++rank) {
              const auto& found = job->results[rank];
              const double terms = static_cast<double>(job->c.width) + 20;
              const auto y = farFrom(job->reference->y, found.y, terms, seqparFloat32, offset);
              const auto dx = farFrom(job->reference->dx, found.dx, terms, seqparFloat32, offset);
              if (said[rank].empty() && !(y + dx).empty()) return "rank " + std::to_string(rank) + ": " + y + dx;
              offset += static_cast<size_t>(job->lengths[rank]) * job->c.channels;
            }
            return "";
          }};
}

std::vector<Operator> operators(uint64_t seed) {
  std::vector<Operator> all;
  for (const auto& row : seqpar::attn::algorithms()) {
    if (row.id == seqparAttnLocal) continue;
    all.push_back(row.softmax ? softmaxOperator(row, seed) : linearOperator(row.id, seed));
  }
  all.push_back(convOperator(seed));
  return all;
}

using Clock = std::chrono::steady_clock;

/// The event on the faulty rank that ends the operation.
enum class Fault { Abort, Fail, AbortInstead, FailInstead };

/// Returns the error, if any, after `fault` on a random rank at a random moment of `op`, which takes `typical`.
std::string trial(const Operator& op, Fault fault, Clock::duration typical, std::mt19937_64& random) {
  const RankThreads group = makeRanks(kRanks, false);
  const int victim = static_cast<int>(random() % kRanks);
  const bool instead = fault == Fault::AbortInstead || fault == Fault::FailInstead;
  const auto end = [&] {
    if (fault == Fault::Abort || fault == Fault::AbortInstead) return seqparCommAbort(group[victim]);
    return seqparCommFail(group[victim], "the test gave up");
  };
  const auto pause = typical * static_cast<int64_t>(random() % 1000) / 900;
  std::jthread saboteur;
  if (!instead) {
    saboteur = std::jthread([&] {
      std::this_thread::sleep_for(pause);
      end();
    });
  }
  const auto said = group.each([&](int rank) {
    if (instead && rank == victim) {
      std::this_thread::sleep_for(pause);
      return end() == seqparSuccess ? std::string("gave up") : std::string();
    }
    return op.run(rank, group[rank]);
  });
  return op.wrong(said);
}

TEST_CASE("a rank that aborts or times out leaves no rank with a wrong result", "[faults]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& op : operators(seed)) {
    Clock::duration typical{};
    {
      const RankThreads group = makeRanks(kRanks, false);
      const auto start = Clock::now();
      const auto said = group.each([&](int rank) { return op.run(rank, group[rank]); });
      typical = Clock::now() - start;
      CAPTURE(op.name);
      for (const auto& text : said) REQUIRE(text == "");
      REQUIRE(op.wrong(said) == "");
    }
    for (const auto fault : {Fault::Abort, Fault::Fail, Fault::AbortInstead, Fault::FailInstead}) {
      CAPTURE(op.name, static_cast<int>(fault));
      CHECK(trial(op, fault, typical, random) == "");
    }
  }
}

TEST_CASE("a block kernel that fails on one rank is an error on all, at once", "[faults]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || row.id == seqparAttnLocal) continue;
    for (const bool onStream : {false, true}) {
      const int victim = static_cast<int>(random() % kRanks);
      std::vector<NaiveKernel::Calls> calls(kRanks);
      std::vector<seqparAttnKernel_t> kernels(kRanks, seqparAttnKernel_t SEQPAR_ATTN_KERNEL_INITIALIZER);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        kernels[rank].forward = NaiveKernel::forward;
        kernels[rank].backward = NaiveKernel::backward;
        kernels[rank].self = &calls[rank];
      }
      calls[static_cast<size_t>(victim)].failsAt = 1;  // of the forward pass: all ranks need what follows
      calls[static_cast<size_t>(victim)].onStream = onStream;
      const auto op = softmaxOperator(row, seed, [&](int rank) {
        RunOptions options;
        options.kernel = &kernels[static_cast<size_t>(rank)];
        return options;
      });
      CAPTURE(row.name, onStream, victim);
      const RankThreads group = makeRanks(kRanks, false);
      const auto said = group.each([&](int rank) { return op.run(rank, group[rank]); });
      CHECK(op.wrong(said) == "");
      for (const auto& text : said) CHECK(text != "");
      seqparResult_t state = seqparSuccess;
      for (int rank = 0; rank < kRanks; ++rank) {
        CHECK(seqparCommGetAsyncError(group[rank], &state) == seqparSuccess);
        CHECK(state != seqparSuccess);
        const std::string text = seqparGetLastError(group[rank]);
        CHECK_THAT(text, Catch::Contains("rank " + std::to_string(victim)));
        CHECK_THAT(text, Catch::Contains(onStream ? "the test's kernel failed on its stream"
                                                  : "kernel->forward returned 42, expected 0"));
      }
    }
  }
}

TEST_CASE("an abort in the middle of a pass leaves no rank with a wrong result", "[faults]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || row.id == seqparAttnLocal) continue;
    for (const int block : {1, 2, 3, 5}) {
      const int victim = static_cast<int>(random() % kRanks);
      const RankThreads group = makeRanks(kRanks, false);
      std::vector<NaiveKernel::Calls> calls(kRanks);
      std::vector<seqparAttnKernel_t> kernels(kRanks, seqparAttnKernel_t SEQPAR_ATTN_KERNEL_INITIALIZER);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        kernels[rank].forward = NaiveKernel::forward;
        kernels[rank].backward = NaiveKernel::backward;
        kernels[rank].self = &calls[rank];
      }
      std::jthread aborter;
      auto& ofVictim = calls[static_cast<size_t>(victim)];
      ofVictim.failsAt = block;
      ofVictim.onStream = true;
      // While the block computes: abort waits for the later operations on the stream.
      ofVictim.instead = [&] {
        aborter = std::jthread([comm = group[victim]] { seqparCommAbort(comm); });
        seqparResult_t state = seqparSuccess;
        while (seqparCommGetAsyncError(group[victim], &state) == seqparSuccess) std::this_thread::yield();
      };
      const auto op = softmaxOperator(row, seed, [&](int rank) {
        RunOptions options;
        options.kernel = &kernels[static_cast<size_t>(rank)];
        return options;
      });
      CAPTURE(row.name, block, victim);
      const auto said = group.each([&](int rank) { return op.run(rank, group[rank]); });
      CHECK(op.wrong(said) == "");
      if (ofVictim.count >= block) CHECK(said[static_cast<size_t>(victim)] != "");
    }
  }
}

}  // namespace
