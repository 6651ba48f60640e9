// mask_block_perf: the block kernels' time for a rank's part of a mask, without exchange, on one GPU: milliseconds and
// TFLOP/s for visible scores of all calls, and of each call alone. Full and causal attention of as many queries come
// first.
//
//     mask_block_perf [TOKENS [RANKS [HEADS [MASKS...]]]]          default: 65536 tokens, 2 ranks, 8 heads, all masks
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>

#include "attn/block/cuda_steps.h"
#include "attn/problem/mask.h"
#include "attn/softmax/key_gather.h"
#include "mask_examples.h"
#include "mask_problem.h"

namespace {

using namespace seqpar::attn;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::perf;  // NOLINT(google-build-using-namespace)

constexpr int64_t kDim = 128;

void checkCuda(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}
void checkAttn(seqparResult_t result) {
  if (result != seqparSuccess) throw std::runtime_error(seqparAttnGetLastError());
}

/// bf16 tensors of one rank, filled with one value.
class Memory {
 public:
  Memory(int64_t rows, int64_t columns, int64_t heads) {
    for (auto** p : {&q, &out, &dOut, &dq}) *p = take(rows * heads * kDim * 2);
    for (auto** p : {&k, &v, &dk, &dv}) *p = take(columns * heads * kDim * 2);
    lse = take(rows * heads * 4);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (void* p : all_) cudaFree(p);
  }
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *dOut = nullptr, *dq = nullptr, *dk = nullptr,
       *dv = nullptr, *lse = nullptr;

 private:
  /// Normal values: constant ones take less power, so that the GPU runs faster than in training.
  static void fill(std::byte* memory, size_t bytes) {
    static const std::vector<uint16_t> values = [] {
      std::mt19937 random(5);
      std::normal_distribution<float> normal;
      std::vector<uint16_t> made(size_t{1} << 22);
      for (auto& value : made) value = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
      return made;
    }();
    for (size_t at = 0; at < bytes; at += 2 * values.size()) {
      checkCuda(
          cudaMemcpy(memory + at, values.data(), std::min(bytes - at, 2 * values.size()), cudaMemcpyHostToDevice));
    }
  }
  void* take(int64_t bytes) {
    void* memory = nullptr;
    checkCuda(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    fill(static_cast<std::byte*>(memory), static_cast<size_t>(bytes));
    all_.push_back(memory);
    return memory;
  }
  std::vector<void*> all_;
};

class Bench {
 public:
  Bench(seqparComm_t comm, int64_t heads) : comm_(comm), heads_(heads) {
    checkCuda(cudaEventCreate(&begin_));
    checkCuda(cudaEventCreate(&end_));
  }

  /// Prints the times of these rectangles.
  void measure(const char* name, std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, bool forward,
               bool backward, int mask = seqparAttnFull) {
    Slices slices;
    for (const auto& r : rectangles) slices.push_back({r.row, r.rows, r.column, r.columns, r.lower, r.upper});
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.algorithm = seqparAttnLocal;
    desc.tokens = rows;
    desc.kvTokens = columns;
    desc.heads = heads_;
    desc.headDim = kDim;
    desc.dataType = seqparBfloat16;
    desc.mask = mask;
    desc.slices = static_cast<int64_t>(slices.size());
    desc.slice = slices.data();
    seqparAttnPlan_t plan = nullptr;
    checkAttn(seqparAttnPlanCreate(&plan, &desc, comm_));
    checkAttn(seqparAttnPlanPrepare(plan, nullptr, 0));
    Memory memory(rows, columns, heads_);
    seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
    f.q.data = memory.q;
    f.k.data = memory.k;
    f.v.data = memory.v;
    f.out.data = memory.out;
    f.lse = static_cast<float*>(memory.lse);
    seqparAttnBackwardArgs_t b = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    b.q = f.q;
    b.k = f.k;
    b.v = f.v;
    b.out = f.out;
    b.lse = f.lse;
    b.dOut.data = memory.dOut;
    b.dq.data = memory.dq;
    b.dk.data = memory.dk;
    b.dv.data = memory.dv;
    const double scores = rectangles.empty() ? static_cast<double>(rows) * static_cast<double>(columns) /
                                                   (mask == seqparAttnCausal ? 2 : 1)
                                             : static_cast<double>(scoresOf(rectangles));
    const double flop = 4 * scores * static_cast<double>(heads_ * kDim);
    std::printf("  %-44s", name);
    const double ms = time([&] { checkAttn(seqparAttnForward(plan, &f, nullptr)); });
    if (forward) std::printf(" forward %8.3f ms %5.0f TF/s", ms, flop / ms * 1e-9);
    if (backward) {
      const double back = time([&] { checkAttn(seqparAttnBackward(plan, &b, nullptr)); });
      std::printf(" backward %8.3f ms %5.0f TF/s", back, 2.5 * flop / back * 1e-9);
    }
    std::printf("\n");
    std::fflush(stdout);
    checkAttn(seqparAttnPlanDestroy(plan));
  }

 private:
  template <typename Call>
  double time(const Call& call) {
    float best = 1e9f;
    for (int i = 0; i < 8; ++i) {
      checkCuda(cudaEventRecord(begin_, nullptr));
      call();
      checkCuda(cudaEventRecord(end_, nullptr));
      checkCuda(cudaEventSynchronize(end_));
      float ms = 0;
      checkCuda(cudaEventElapsedTime(&ms, begin_, end_));
      if (i > 0) best = std::min(best, ms);
    }
    return static_cast<double>(best);
  }

  seqparComm_t comm_;
  int64_t heads_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

std::string text(const BlockStep& step) {
  constexpr const char* kNames[] = {"single", "ragged", "bands"};
  int64_t rows = 0, columns = 0;
  for (const auto& r : step.rectangles) {
    rows = std::max(rows, r.rows);
    columns = std::max(columns, r.columns);
  }
  return std::string(kNames[static_cast<int>(step.kind)]) + (step.right >= 0 ? " causal, " : ", ") +
         std::to_string(step.rectangles.size()) + " of at most " + std::to_string(rows) + " x " +
         std::to_string(columns);
}

void run(Bench& bench, const char* name, const Slices& slices, int64_t tokens, int ranks) {
  Problem problem = solvedProblem("mask_block_perf", slices, tokens, ranks);
  const auto& gathered = *gatheredKeys(problem);
  for (problem.info.rank = 0; problem.info.rank < std::min(ranks, 2); ++problem.info.rank) {
    const int rank = problem.info.rank;
    const auto seen = rectanglesOf(problem.queries.runsOf(rank), gathered.runsOf(rank), problem.visibility());
    const int64_t rows = problem.tokens(), columns = gathered.tokensOf(problem, rank);
    std::printf("%s, rank %d: %lld queries, %lld keys, %zu rectangles\n", name, rank, static_cast<long long>(rows),
                static_cast<long long>(columns), seen.size());
    bench.measure("all", seen, rows, columns, true, true);
    BlockLimits limits;
    limits.cudnn = limits.changing = true;
    limits.sharedColumns = limits.join = true;
    for (const auto& step : stepsOf(forForward(seen, limits), limits))
      bench.measure(text(step).c_str(), step.rectangles, rows, columns, true, false);
    limits.sharedColumns = limits.join = false;
    for (const auto& step : stepsOf(forBackward(seen), limits)) {
      bench.measure(text(step).c_str(), step.rectangles, rows, columns, false, true);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t tokens = argc > 1 ? tokensOf(argv[1]) : 65536;
    const int ranks = argc > 2 ? ranksOf(argv[2]) : 2;
    const int64_t heads = argc > 3 ? argument("HEADS", argv[3], 1, 1024) : 8;
    const int device = 0;
    seqparComm_t comm = nullptr;
    check(seqparCommInitAll(&comm, 1, &device));
    Bench bench(comm, heads);
    std::printf("%lld tokens on %d ranks, %lld heads of %lld, bf16\n", static_cast<long long>(tokens), ranks,
                static_cast<long long>(heads), static_cast<long long>(kDim));
    const int64_t own = tokens / ranks;
    if (argc <= 4) {
      bench.measure("full", {}, own, own, true, true);
      bench.measure("causal", {}, own, own, true, true, seqparAttnCausal);
      const Rectangle square{0, own, 0, own}, triangle{0, own, 0, own, INT64_MIN, 0};
      bench.measure("full, as a slice", {&square, 1}, own, own, true, true);
      bench.measure("causal, as a slice", {&triangle, 1}, own, own, true, true);
      bench.measure("full, an eighth of the queries", {}, own / 8, 2 * own, true, true);
      bench.measure("full, an eighth of the keys", {}, own, own / 8, true, true);
      bench.measure("full, an eighth of both", {}, own / 8, own / 8, true, true);
    }
    for (const auto& [name, slices] : examples(tokens)) {
      const auto wanted = [&](const char* one) { return std::string(one) == name; };
      if (argc <= 4 ? std::string(name) != "short documents" : std::any_of(argv + 4, argv + argc, wanted)) {
        run(bench, name, slices, tokens, ranks);
      }
    }
    seqparCommDestroy(comm);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mask_block_perf: %s\n", error.what());
    return 1;
  }
}
