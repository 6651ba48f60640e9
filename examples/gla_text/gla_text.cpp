// Gated linear attention over a text that is sharded across ranks, compared output by output with its definition.
//
//   gla_text [FILE] [--ranks N] [--repeat N]
//
// Exit status: 0 all outputs within the bound, 1 some not, 2 bad arguments or file, 3 a call failed.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "launch.h"
#include "ranks.h"
#include "reference.h"
#include "seqpar/attn.h"
#include "text.h"

namespace {

constexpr const char* kUsage =
    "usage: gla_text [FILE] [--ranks N] [--repeat N]\n"
    "  FILE       any file; its bytes are the tokens (default /usr/share/common-licenses/GPL-3)\n"
    "  --ranks    number of ranks where neither mpirun nor RANK/WORLD_SIZE set it (default 4)\n"
    "  --repeat   how often to run; the fastest run counts (default 5)\n";

struct Options {
  std::string file = "/usr/share/common-licenses/GPL-3";
  int ranks = 4;
  size_t repeat = 5;
};

using Text = std::vector<unsigned char>;

int parseNumber(const std::string& option, const char* text) {
  char* end = nullptr;
  const long number = text != nullptr ? std::strtol(text, &end, 10) : 0;
  if (text == nullptr || end == text || *end != '\0' || number < 1 || number > 1024) {
    throw std::invalid_argument(option + " is " + (text != nullptr ? text : "missing") +
                                ", expected a number from 1 to 1024");
  }
  return static_cast<int>(number);
}

Options parse(int count, char** words) {
  Options options;
  bool named = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--ranks") {
      options.ranks = parseNumber(word, words[++i]);
    } else if (word == "--repeat") {
      options.repeat = static_cast<size_t>(parseNumber(word, words[++i]));
    } else if (word.size() > 1 && word[0] == '-') {
      throw std::invalid_argument("unknown option " + word);
    } else if (named) {
      throw std::invalid_argument("two files: " + options.file + " and " + word);
    } else {
      options.file = word;
      named = true;
    }
  }
  return options;
}

/// The bytes of a file; nothing, after a word on why, if there are none.
std::optional<Text> readFile(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    std::cerr << "gla_text: " << path << " is a directory, expected a file\n";
    return {};
  }
  std::ifstream file(path, std::ios::binary);
  Text text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file || file.bad()) {
    std::cerr << "gla_text: cannot read " << path << ": " << std::strerror(errno) << '\n';
    return {};
  }
  if (text.empty()) {
    std::cerr << "gla_text: " << path << " is empty, expected at least one byte\n";
    return {};
  }
  return text;
}

/// Rank 0's file on every rank; nothing if rank 0 could not read it.
std::optional<Text> shareFile(const Ranks& ranks, const std::string& path) {
  std::optional<Text> text;
  if (ranks.rank() == 0) text = readFile(path);
  uint64_t size = text ? text->size() : 0;
  ranks.broadcast(std::span(&size, 1));
  if (size == 0) return {};
  if (!text) text.emplace(size);
  ranks.broadcast(std::span(*text));
  return text;
}

seqparGlaParams_t makeParams(const Shape& shape, size_t tokens) {
  seqparGlaParams_t params = SEQPAR_GLA_PARAMS_INITIALIZER;
  params.tokens = static_cast<int64_t>(tokens);
  params.heads = static_cast<int64_t>(shape.heads);
  params.dk = static_cast<int64_t>(shape.dk);
  params.dv = static_cast<int64_t>(shape.dv);
  return params;
}

/// What a run took: on the clock, and of a processor. They differ where ranks wait for each other or share processors.
struct Time {
  double wall = 0, processor = 0;  // ms
};

Time now() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double, std::milli>(wall).count(),
          static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6};
}

/// Runs the operator on `inputs`.
Time timedForward(const Inputs& inputs, std::vector<float>& out, const Shape& shape, seqparComm_t comm) {
  const auto params = makeParams(shape, out.size() / (shape.heads * shape.dv));
  const Time start = now();
  const auto result = seqparGlaForward(inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.logDecay.data(),
                                       nullptr, out.data(), nullptr, nullptr, &params, comm, nullptr);
  const Time end = now();
  if (result != seqparSuccess) throw std::runtime_error(seqparAttnGetLastError());
  return {end.wall - start.wall, end.processor - start.processor};
}

/// What the scan of these states is expected to take.
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

/// One rank's line of the table.
struct Line {
  size_t first = 0, tokens = 0;
  Deviation deviation;
};

/// The run whose slowest rank was the fastest.
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
  std::printf("  %-6s %10zu %10zu %11.3f %11.3f %13.3e %13.3e %12.4f\n", name, line.first, line.tokens, time.wall,
              time.processor, line.deviation.absolute, line.deviation.relative, line.deviation.ofBound);
}

/// Prints the table; true if all outputs are within the bound.
bool report(const Options& options, const Shape& shape, const std::vector<Line>& lines, const std::vector<Time>& times,
            const Line& single, Time singleTime, const seqparScanEstimate_t& plan) {
  std::printf("file            %s\n", options.file.c_str());
  std::printf("tokens          %zu (one a byte), %zu heads, dk %zu, dv %zu, fp32\n", single.tokens, shape.heads,
              shape.dk, shape.dv);
  std::printf("ranks           %zu (%s)\n", lines.size(), launchedBy());
  if (lines.size() > 1) {
    std::printf("scan            %s, %d blocks, model %.1f us for %.1f KiB of states a rank\n",
                seqparScanAlgorithmName(plan.algorithm), plan.blocks, plan.modelUs,
                static_cast<double>(shape.heads * shape.dk * shape.dv * sizeof(float)) / 1024);
  }
  std::printf("\n  %-6s %10s %10s %11s %11s %13s %13s %12s\n", "rank", "first", "tokens", "time ms", "CPU ms",
              "max abs err", "max rel err", "err / bound");
  const size_t run = bestRun(times, options.repeat);
  Time slowest;
  Line all{0, 0, {}};
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const Time time = times[rank * options.repeat + run];
    slowest = {std::max(slowest.wall, time.wall), std::max(slowest.processor, time.processor)};
    all.tokens += lines[rank].tokens;
    all.deviation.add(lines[rank].deviation);
    printLine(std::to_string(rank).c_str(), lines[rank], time);
  }
  printLine("all", all, slowest);
  printLine("single", single, singleTime);
  const bool good = all.deviation.ofBound <= 1 && single.deviation.ofBound <= 1 && all.tokens == single.tokens;
  std::printf("\nspeed-up        %.2f (one rank %.3f ms / slowest of %zu ranks %.3f ms)\n",
              singleTime.wall / slowest.wall, singleTime.wall, lines.size(), slowest.wall);
  std::printf("compared        every output with the recurrence in fp64; largest |output| %.3e\n",
              all.deviation.largest);
  std::printf(
      "                rel err: share of the sum of the output's terms without signs; bound: of fp32 rounding\n");
  std::printf("result          %s\n", good ? "OK" : "WRONG");
  std::fflush(stdout);
  return good;
}

int runRank(const Options& options, seqparComm_t comm) {
  const Ranks ranks(comm);
  const auto text = shareFile(ranks, options.file);
  if (!text) return 2;

  const Shape shape;
  const Embedding embed(shape);
  const size_t width = shape.heads * shape.dv;
  const auto boundary = [&](size_t rank) { return text->size() * rank / ranks.count(); };
  Line line;
  line.first = boundary(ranks.rank());
  line.tokens = boundary(ranks.rank() + 1) - line.first;
  const auto mine = embed(std::span(*text).subspan(line.first, line.tokens));
  std::vector<float> out(line.tokens * width);
  std::vector<Time> times;
  for (size_t i = 0; i < options.repeat; ++i) {
    ranks.meet();
    times.push_back(timedForward(mine, out, shape, comm));
  }

  // One rank alone with the whole text, while the others wait.
  const auto whole = embed(*text);
  Line single{0, text->size(), {}};
  Time singleTime;
  std::vector<float> singleOut;
  if (ranks.rank() == 0) {
    singleOut.resize(text->size() * width);
    for (size_t i = 0; i < options.repeat; ++i) {
      const Time time = timedForward(whole, singleOut, shape, nullptr);
      if (i == 0 || time.wall < singleTime.wall) singleTime = time;
    }
  }
  ranks.meet();

  line.deviation = compareWithDefinition(whole, out, line.first, shape);
  if (ranks.rank() == 0) single.deviation = compareWithDefinition(whole, singleOut, 0, shape);
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
  Options options;
  try {
    options = parse(count, words);
  } catch (const std::invalid_argument& error) {
    std::cerr << "gla_text: " << error.what() << '\n' << kUsage;
    return 2;
  }
  try {
    return launch(options.ranks, [&](seqparComm_t comm) { return runRank(options, comm); });
  } catch (const std::exception& error) {
    std::cerr << "gla_text: " << error.what() << '\n';
    return 3;
  }
}
