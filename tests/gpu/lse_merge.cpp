// gpu_lse_merge RANKS [graph] [Catch's options]: merges of partial attention on GPU communicators with ranks as threads
// of this process, against fp64; with `graph` the calls are captured and replayed, also with changing numbers of rows.
// With more ranks than GPUs, several share one. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstring>

#include "base/error.h"
#include "gpu/support/fill.h"
#include "gpu/support/placed_ranks.h"
#include "seqpar/exchange.h"
#include "unit/exchange/lse_case.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;            // NOLINT(google-build-using-namespace)
using namespace seqpar::test;      // NOLINT(google-build-using-namespace)
using seqpar::attn::test::Placed;  // NOLINT(google-build-using-namespace)
using seqpar::attn::test::PlacedRanks;
using seqpar::attn::test::Placement;

attn::test::PlacedRun placed;

struct Merged {
  std::vector<std::byte> out;
  std::vector<float> lse;
};

/// One rank's buffers of one call.
struct Call {
  Call(const MergeCase& given, const Placement* placement, seqparComm_t aComm, int aRank, bool heads)
      : c(given), comm(aComm), rank(aRank), byHeads(heads) {
    const auto self = static_cast<size_t>(rank);
    out = c.out[self];
    lse = c.lse[self];
    int64_t firstHead = 0, count = 0;
    expectSuccess(seqparHeadsOfMember(static_cast<int64_t>(c.heads), 0, placed.ranks, rank, &firstHead, &count),
                  "seqparHeadsOfMember");
    first = byHeads ? static_cast<size_t>(firstHead) : 0;
    own = byHeads ? static_cast<size_t>(count) : c.heads;
    made.out.resize(c.rows * own * c.rowBytes());
    made.lse.resize(c.rows * own);
    const auto place = [&](auto& values) {
      return Placed(values.data(), values.size() * sizeof(values[0]), placement, rank);
    };
    onDevice = {place(out), place(lse), place(made.out), place(made.lse), place(rowCount)};
  }

  std::string enqueue(void* stream, bool inPlace, bool counted) const {
    auto params = paramsOf(c);
    if (counted) params.rowCount = static_cast<const int32_t*>(onDevice[4].data());
    const auto call = byHeads ? seqparReduceScatterLseByHeads : seqparAllReduceLse;
    void* const intoOut = own == 0 ? nullptr : onDevice[inPlace ? 0 : 2].data();
    auto* const intoLse = static_cast<float*>(own == 0 ? nullptr : onDevice[inPlace ? 1 : 3].data());
    const auto result = call(onDevice[0].data(), static_cast<const float*>(onDevice[1].data()), intoOut, intoLse,
                             &params, comm, stream);
    return result == seqparSuccess ? "" : seqparGetLastError(comm);
  }

  /// Compares the first `rows` rows of the result.
  std::string compareResult(bool inPlace, size_t rows) {
    onDevice[inPlace ? 0 : 2].fetch();
    onDevice[inPlace ? 1 : 3].fetch();
    if (inPlace) made = {out, lse};
    try {
      compare(c, made.out, made.lse, first, own, rows);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  const MergeCase& c;
  seqparComm_t comm;
  int rank;
  bool byHeads;
  size_t first = 0, own = 0;
  std::vector<std::byte> out;
  std::vector<float> lse;
  Merged made;
  std::vector<int32_t> rowCount = {0};
  std::vector<Placed> onDevice;
};

/// The first `rows` rows of an all-reduce have equal bits on all ranks, and those of a reduce-scatter are the same.
void checkBits(const MergeCase& c, const std::vector<std::unique_ptr<Call>>& all, size_t rows, const Merged& expected) {
  for (const auto& call : all) {
    for (size_t i = 0; i < rows * call->own; ++i) {
      const size_t row = call->byHeads ? i / call->own * c.heads + call->first + i % call->own : i;
      const bool same = std::memcmp(call->made.out.data() + i * c.rowBytes(), expected.out.data() + row * c.rowBytes(),
                                    c.rowBytes()) == 0 &&
                        std::memcmp(&call->made.lse[i], &expected.lse[row], sizeof(float)) == 0;
      if (!same) FAIL("row " << row << " has other bits on rank " << call->rank);
    }
  }
}

struct How {
  bool inPlace = false, counted = false;
  int32_t rows = 0;  ///< *rowCount
};

/// The all-reduce, and the reduce-scatter by heads, of one case.
void check(PlacedRanks& ranks, const MergeCase& c, const How& how) {
  CAPTURE(c.type, c.rows, c.heads, c.dim, how.inPlace, how.counted, how.rows, placed.ranks);
  const auto most = static_cast<int32_t>(c.rows);
  const auto used = static_cast<size_t>(how.counted ? std::clamp(how.rows, 0, most) : most);
  Merged whole;
  for (const bool byHeads : {false, true}) {
    const Placement* const placement = ranks.placement();
    const bool inPlace = how.inPlace && !byHeads;
    std::vector<std::unique_ptr<Call>> calls(static_cast<size_t>(placed.ranks));
    const auto said = ranks.group().each([&](int rank) {
      auto& call = calls[static_cast<size_t>(rank)];
      call = std::make_unique<Call>(c, placement, ranks.group()[rank], rank, byHeads);
      call->rowCount[0] = how.rows;
      placement->copy(rank, call->onDevice[4].data(), &how.rows, sizeof(how.rows));
      auto text = placement->run(rank, [&](void* stream) { return call->enqueue(stream, inPlace, how.counted); });
      if (text.empty()) text = call->compareResult(inPlace, used);
      placement->barrier();
      return text;
    });
    for (const auto& text : said) REQUIRE(text == "");
    if (!byHeads) whole = calls[0]->made;
    checkBits(c, calls, used, whole);
  }
}

/// How of one call; with graphs, which run twice, not in place.
How draw(std::mt19937_64& random, size_t rows) {
  const auto count = static_cast<int64_t>(random() % (rows + 3)) - 1;  // outside of the rows too: clamped
  return {!placed.graphs && random() % 2 == 0, random() % 2 == 0, static_cast<int32_t>(count)};
}

TEST_CASE("merges of random shards on GPUs equal fp64, with equal bits on all ranks") {
  const Seed seed;
  std::mt19937_64 random(seed);
  PlacedRanks ranks(placed);
  for (int round = 0; round < 30; ++round) {
    const MergeCase c = randomMerge(random, static_cast<size_t>(placed.ranks), round % 3 == 2);
    CAPTURE(round);
    check(ranks, c, draw(random, c.rows));
  }
}

MergeCase mergeOf(seqparDataType_t type, size_t rows, size_t heads, size_t dim, std::mt19937_64& random) {
  MergeCase c;
  c.type = type;
  c.rows = rows;
  c.heads = heads;
  c.dim = dim;
  fill(c, random, static_cast<size_t>(placed.ranks));
  return c;
}

/// Rows of whole packets: short messages, messages of two hops between more than two ranks, several steps of the rings,
/// and heads that exceed the kernel's limit.
TEST_CASE("merges of decode steps on GPUs equal fp64, with equal bits on all ranks") {
  const Seed seed;
  std::mt19937_64 random(seed);
  PlacedRanks ranks(placed);
  for (const auto type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
    for (const auto& [rows, heads, dim] :
         {std::array<size_t, 3>{1, 32, 128}, {2, 64, 128}, {33, 32, 128}, {300, 16, 64}, {3, 128, 512}, {2, 3, 4104}}) {
      const MergeCase c = mergeOf(type, rows, heads, dim, random);
      check(ranks, c, draw(random, rows));
    }
  }
}

/// Merges of inputs that the kernel before writes and the kernel after overwrites, both without programmatic launch.
/// The two cases alternate, so late reads and early reads both show.
std::string amongKernels(const Placement* placement, std::vector<std::unique_ptr<Call>>& cases) {
  constexpr int kSteps = 12;
  constexpr uint64_t kLateNs = 20000;
  const int rank = cases[0]->rank;
  std::vector<Placed> kept;
  const auto space = [&](const auto& values) {
    auto copy = values;
    kept.emplace_back(copy.data(), copy.size() * sizeof(copy[0]), placement, rank);
    return kept.back().data();
  };
  kept.reserve(4 + 2 * kSteps);
  const Call& shape = *cases[0];
  void* const out = space(shape.out);
  void* const lse = space(shape.lse);
  void* const merged = space(shape.made.out);
  void* const mergedLse = space(shape.made.lse);
  std::vector<std::pair<void*, void*>> found;
  for (int i = 0; i < kSteps; ++i) {
    void* const one = space(shape.made.out);
    found.emplace_back(one, space(shape.made.lse));
  }
  placement->barrier();
  const size_t outBytes = shape.out.size(), lseBytes = shape.lse.size() * sizeof(float);
  const size_t madeBytes = shape.made.out.size(), madeLseBytes = shape.made.lse.size() * sizeof(float);
  auto said = placement->run(rank, [&](void* onStream) -> std::string {
    auto* const stream = static_cast<cudaStream_t>(onStream);
    for (int i = 0; i < kSteps; ++i) {
      const Call& from = *cases[static_cast<size_t>(i % 2)];
      expectCuda(launchCopy(lse, from.onDevice[1].data(), lseBytes, stream), "launchCopy");
      expectCuda(launchLateCopy(out, from.onDevice[0].data(), outBytes, kLateNs, stream), "launchLateCopy");
      const auto params = paramsOf(from.c);
      const auto call = shape.byHeads ? seqparReduceScatterLseByHeads : seqparAllReduceLse;
      if (call(out, static_cast<const float*>(lse), merged, static_cast<float*>(mergedLse), &params, shape.comm,
               stream) != seqparSuccess) {
        return seqparGetLastError(shape.comm);
      }
      launchFill(static_cast<float*>(out), outBytes / sizeof(float), kNaN, stream);
      launchFill(static_cast<float*>(lse), lseBytes / sizeof(float), kNaN, stream);
      const auto& [into, intoLse] = found[static_cast<size_t>(i)];
      expectCuda(launchCopy(into, merged, madeBytes, stream), "launchCopy");
      expectCuda(launchCopy(intoLse, mergedLse, madeLseBytes, stream), "launchCopy");
    }
    return "";
  });
  for (size_t i = 0; said.empty() && i < found.size(); ++i) {
    Call& from = *cases[i % 2];
    placement->copy(rank, from.made.out.data(), found[i].first, madeBytes);
    placement->copy(rank, from.made.lse.data(), found[i].second, madeLseBytes);
    try {
      compare(from.c, from.made.out, from.made.lse, from.first, from.own, from.c.rows);
    } catch (const std::exception& error) {
      said = concat("step ", i, ": ", error.what());
    }
  }
  placement->barrier();
  return said;
}

TEST_CASE("merges among ordinary kernels read and write in stream order") {
  const Seed seed;
  std::mt19937_64 random(seed);
  PlacedRanks ranks(placed);
  for (const size_t rows : {size_t{1}, size_t{16}, size_t{400}}) {
    const MergeCase both[] = {mergeOf(seqparBfloat16, rows, 32, 128, random),
                              mergeOf(seqparBfloat16, rows, 32, 128, random)};
    for (const bool byHeads : {false, true}) {
      const Placement* const placement = ranks.placement();
      const auto said = ranks.group().each([&](int rank) {
        std::vector<std::unique_ptr<Call>> cases;
        for (const auto& c : both) {
          cases.push_back(std::make_unique<Call>(c, placement, ranks.group()[rank], rank, byHeads));
        }
        return amongKernels(placement, cases);
      });
      CAPTURE(rows, byHeads);
      for (const auto& text : said) CHECK(text == "");
    }
  }
}

/// A merge of equal partial results has the same output, and an lse larger by log(ranks).
TEST_CASE("merges that follow each other read the results of the merge before") {
  constexpr int kSteps = 40;
  const Seed seed;
  std::mt19937_64 random(seed);
  PlacedRanks ranks(placed);
  for (const size_t rows : {size_t{1}, size_t{64}, size_t{700}}) {
    MergeCase c = mergeOf(seqparFloat32, rows, 8, 128, random);
    for (auto& lse : c.lse) {  // small, so that few bits are lost at first
      for (float& value : lse) value /= 20;
    }
    c.expectedOut.clear();
    c.expectedLse.clear();
    merge(c);
    const Placement* const placement = ranks.placement();
    const auto said = ranks.group().each([&](int rank) {
      Call call(c, placement, ranks.group()[rank], rank, false);
      Call next(c, placement, ranks.group()[rank], rank, false);
      placement->barrier();
      auto text = placement->run(rank, [&](void* stream) -> std::string {
        const auto params = paramsOf(c);
        const Placed* at[] = {&call.onDevice[0], &call.onDevice[1]};
        for (int i = 0; i < kSteps; ++i) {
          const Call& to = i % 2 == 0 ? next : call;
          if (seqparAllReduceLse(at[0]->data(), static_cast<const float*>(at[1]->data()), to.onDevice[2].data(),
                                 static_cast<float*>(to.onDevice[3].data()), &params, call.comm,
                                 stream) != seqparSuccess) {
            return seqparGetLastError(call.comm);
          }
          at[0] = &to.onDevice[2];
          at[1] = &to.onDevice[3];
        }
        return "";
      });
      MergeCase later = c;
      for (double& lse : later.expectedLse) lse += (kSteps - 1) * std::log(static_cast<double>(placed.ranks));
      placement->copy(rank, call.made.out.data(), call.onDevice[2].data(), call.made.out.size());
      placement->copy(rank, call.made.lse.data(), call.onDevice[3].data(), call.made.lse.size() * sizeof(float));
      try {
        compare(later, call.made.out, call.made.lse, 0, c.heads, c.rows);
      } catch (const std::exception& error) {
        text += error.what();
      }
      placement->barrier();
      return text;
    });
    CAPTURE(rows);
    for (const auto& text : said) CHECK(text == "");
  }
}

/// One rank's part: a graph of both calls, replayed with every number of rows from `counts`.
std::string replay(PlacedRanks& ranks, const Placement* placement, std::vector<std::unique_ptr<Call>>& calls,
                   const std::vector<int32_t>& counts) {
  const int rank = calls[0]->rank;
  expectCuda(cudaSetDevice(rank), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  expectCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::string said;
  for (const auto& call : calls) said += call->enqueue(stream, false, true);
  expectCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  if (!said.empty()) return said;
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  for (const int32_t count : counts) {
    for (const auto& call : calls) placement->copy(rank, call->onDevice[4].data(), &count, sizeof(count));
    expectCuda(cudaGraphLaunch(ready, stream), "cudaGraphLaunch");
    expectCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (const auto& call : calls) {
      const auto text = call->compareResult(false, static_cast<size_t>(count));
      if (!text.empty()) said += concat(count, " rows: ", text, "; ");
    }
  }
  seqparResult_t state = seqparSuccess;
  expectSuccess(seqparCommGetAsyncError(ranks.group()[rank], &state), "seqparCommGetAsyncError");
  if (state != seqparSuccess) said += seqparGetLastError(ranks.group()[rank]);
  expectCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  expectCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return said;
}

TEST_CASE("one captured decode step serves changing numbers of rows") {
  if (!placed.graphs) return;
  const Seed seed;
  std::mt19937_64 random(seed);
  PlacedRanks ranks(placed);
  for (const size_t rows : {size_t{8}, size_t{200}}) {
    const MergeCase c = mergeOf(seqparBfloat16, rows, 16, 128, random);
    std::vector<int32_t> counts;
    for (int i = 0; i < 20; ++i) counts.push_back(static_cast<int32_t>(random() % (rows + 1)));
    const Placement* const placement = ranks.placement();
    const auto said = ranks.group().each([&](int rank) {
      std::vector<std::unique_ptr<Call>> calls;
      for (const bool byHeads : {false, true}) {
        calls.push_back(std::make_unique<Call>(c, placement, ranks.group()[rank], rank, byHeads));
      }
      placement->barrier();
      auto text = replay(ranks, placement, calls, counts);
      placement->barrier();
      return text;
    });
    CAPTURE(rows, counts);
    for (const auto& text : said) CHECK(text == "");
  }
}

}  // namespace

int main(int count, char** words) {
  return attn::test::runPlaced(count, words, placed);
}
