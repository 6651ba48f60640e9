// Gated linear attention over a text that is sharded across ranks, forward and backward: outputs are compared with the
// definition, gradients with those of one rank.
//
//   gla_text [FILE] [--ranks N] [--repeat N] [--gpu]
//
// Exit status: 0 all outputs within the bound, 1 some not, 2 bad arguments or file, 3 a call failed, 77 no GPU.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gradients.h"
#include "launch.h"
#include "operator.h"
#include "options.h"
#include "program.h"
#include "ranks.h"
#include "reference.h"
#include "seqpar/attn.h"
#include "text.h"

namespace {

constexpr const char* kUsage =
    "usage: gla_text [FILE] [--ranks N] [--repeat N] [--gpu]\n"
    "  FILE       any file; its bytes are the tokens (default /usr/share/common-licenses/GPL-3)\n"
    "  --ranks    number of ranks where neither mpirun nor RANK/WORLD_SIZE set it (default 4)\n"
    "  --repeat   how often to run; the fastest run counts (default 5)\n"
    "  --gpu      ranks compute on GPUs; with fewer GPUs than ranks, they share\n";

/// Predicted time of the scan of these states.
seqparScanEstimate_t planScan(const Shape& shape, seqparComm_t comm) {
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.heads = static_cast<int64_t>(shape.heads);
  params.dk = static_cast<int64_t>(shape.dk);
  params.dv = static_cast<int64_t>(shape.dv);
  params.decayForm = seqparDecayLog;
  std::vector<seqparScanEstimate_t> estimates(SEQPAR_SCAN_ALGORITHMS + 1);
  require(seqparAllScanPlan(&params, comm, estimates.data()), comm);
  return estimates[0];
}

/// The line of one rank.
struct Line {
  size_t first = 0, tokens = 0;
  Deviation deviation, gradients;
};

/// The run with the fastest slowest rank.
size_t bestRun(const std::vector<Time>& times, size_t repeat) {
  const auto slowest = [&](size_t run) {
    double most = 0;
    for (size_t i = run; i < times.size(); i += repeat) most = std::max(most, times[i].wall);
    return most;
  };
  size_t best = 0;
  for (size_t run = 1; run < repeat; ++run) {
    if (slowest(run) < slowest(best)) best = run;
  }
  return best;
}

void printLine(const char* name, const Line& line, Time time) {
  std::printf("  %-6s %10zu %10zu %11.3f %11.3f %13.3e %12.4f %13.3e %12.4f\n", name, line.first, line.tokens,
              time.wall, time.processor, line.deviation.relative, line.deviation.ofBound, line.gradients.relative,
              line.gradients.ofBound);
}

/// Prints the table; true if all outputs are within the bound.
bool report(const Options& options, const Shape& shape, const std::vector<Line>& lines, const std::vector<Time>& times,
            const Line& single, Time singleTime, const seqparScanEstimate_t& plan) {
  std::printf("file            %s\n", options.file.c_str());
  std::printf("memory          %s\n", options.gpu ? "GPUs" : "host");
  std::printf("tokens          %zu (one a byte), %zu heads, dk %zu, dv %zu, fp32\n", single.tokens, shape.heads,
              shape.dk, shape.dv);
  std::printf("ranks           %zu (%s)\n", lines.size(), launchedBy());
  if (lines.size() > 1) {
    std::printf("scan            %s, %d blocks, model %.1f us for %.1f KiB of states a rank\n",
                seqparScanAlgorithmName(plan.algorithm), plan.blocks, plan.modelUs,
                static_cast<double>(shape.heads * shape.dk * shape.dv * sizeof(float)) / 1024);
  }
  std::printf("\n  %-6s %10s %10s %11s %11s %13s %12s %13s %12s\n", "rank", "first", "tokens", "time ms", "CPU ms",
              "out: rel err", "err / bound", "grad: rel err", "err / bound");
  const size_t run = bestRun(times, options.repeat);
  Time slowest;
  Line all;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const Time time = times[rank * options.repeat + run];
    slowest = {std::max(slowest.wall, time.wall), std::max(slowest.processor, time.processor)};
    all.tokens += lines[rank].tokens;
    all.deviation.add(lines[rank].deviation);
    all.gradients.add(lines[rank].gradients);
    printLine(std::to_string(rank).c_str(), lines[rank], time);
  }
  printLine("all", all, slowest);
  printLine("single", single, singleTime);
  const bool good = all.deviation.ofBound <= 1 && single.deviation.ofBound <= 1 && all.gradients.ofBound <= 1 &&
                    all.tokens == single.tokens;
  std::printf("\nspeed-up        %.2f (one rank %.3f ms / slowest of %zu ranks %.3f ms)\n",
              singleTime.wall / slowest.wall, singleTime.wall, lines.size(), slowest.wall);
  std::printf("time            forward and backward\n");
  std::printf("compared        every output with the recurrence in fp64, every gradient with one rank's\n");
  std::printf(
      "                rel err: share of the sum of the output's terms without signs; bound: of fp32 rounding\n");
  std::printf("result          %s\n", good ? "OK" : "WRONG");
  std::fflush(stdout);
  return good;
}

int runRank(const Options& options, seqparComm_t comm) {
  const Ranks ranks(comm);
  if (options.gpu && countGpus() == 0) {
    if (ranks.rank() == 0) std::puts("skipped: no GPU");
    return 77;
  }
  const auto text = shareFile(ranks, "gla_text", options);
  if (!text) return 2;

  const Shape shape;
  const Embedding embed(shape);
  const auto boundary = [&](size_t rank) { return text->size() * rank / ranks.count(); };
  Line line;
  line.first = boundary(ranks.rank());
  line.tokens = boundary(ranks.rank() + 1) - line.first;
  std::vector<int64_t> tokensOfRanks;
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    tokensOfRanks.push_back(static_cast<int64_t>(boundary(rank + 1) - boundary(rank)));
  }
  const auto whole = embed(*text);
  const auto wholeGradient = embed.outputGradients(*text);
  const auto mine = embed(std::span(*text).subspan(line.first, line.tokens));
  const auto gradient = embed.outputGradients(std::span(*text).subspan(line.first, line.tokens));
  Outputs outputs;
  std::vector<Time> times;
  {
    const int device = options.gpu ? gpuOf(ranks.rank()) : SEQPAR_HOST_DEVICE;
    const auto gpus = options.gpu ? std::make_unique<GpuComm>(ranks, device) : nullptr;
    Operator distributed(shape, tokensOfRanks, gpus ? gpus->get() : comm, device);
    distributed.place(mine, gradient, outputs);
    for (size_t i = 0; i < options.repeat; ++i) {
      ranks.barrier();
      times.push_back(distributed.run());
    }
    ranks.barrier();
    distributed.fetch(outputs);
  }

  // One rank alone with the whole text, on its host. The other ranks do the same, untimed, for the comparison of
  // gradients.
  Line single;
  single.tokens = text->size();
  Time singleTime;
  Operator alone(shape, {static_cast<int64_t>(text->size())}, nullptr);
  Outputs expected, sizes;
  alone.place(whole, wholeGradient, expected);
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    const size_t runs = rank == 0 ? options.repeat : 1;
    for (size_t i = 0; i < runs && rank == ranks.rank(); ++i) {
      const Time time = alone.run();
      if (i == 0 || time.wall < singleTime.wall) singleTime = time;
    }
    ranks.barrier();
  }
  auto magnitudes = wholeGradient;
  for (auto& number : magnitudes) number = std::abs(number);
  const auto unsignedInputs = withoutSigns(whole);
  alone.place(unsignedInputs, magnitudes, sizes);
  alone.run();

  line.deviation = compareWithDefinition(whole, outputs.out, line.first, shape);
  line.gradients = compareGradients(whole, expected, sizes, outputs, line.first, shape);
  if (ranks.rank() == 0) single.deviation = compareWithDefinition(whole, expected.out, 0, shape);
  const auto lines = ranks.gather(std::vector<Line>{line});
  const auto allTimes = ranks.gather(times);
  const auto plan = planScan(shape, comm);
  int status = 0;
  if (ranks.rank() == 0 && !report(options, shape, lines, allTimes, single, singleTime, plan)) status = 1;
  ranks.broadcast(std::span(&status, 1));
  return status;
}

}  // namespace

int main(int count, char** words) {
  letRanksShareGpus();
  return runProgram(
      "gla_text", kUsage, [&] { return parseOptions(count, words, true); }, runRank);
}
