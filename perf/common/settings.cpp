#include "settings.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace seqpar::perf {
namespace {

constexpr long kMostIterations = 1000000;

/// A setter of an integer in [least, most].
template <typename Field>
OptionParser::Setter integer(Field& field, long least, long most) {
  return
      [&field, least, most](const std::string& text) { field = static_cast<Field>(parseInteger(text, least, most)); };
}

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

/// Passes one of nccl-tests' environment variables to `setter`; errors name the variable.
void readVariable(const char* name, const OptionParser::Setter& setter) {
  const char* const value = variable(name);
  if (value == nullptr) return;
  try {
    setter(value);
  } catch (const UsageError& error) {
    throw UsageError(std::string("environment variable ") + name + ": " + error.what());
  }
}

}  // namespace

void Settings::addTo(OptionParser& parser, size_t defaultBytes) {
  parser.group("Ranks, as in nccl-tests");
  parser.add('t', "nthreads", "N", "threads of a process (if neither -t nor -g is given and nothing launched more: 2)",
             integer(threads, 1, 1024));
  parser.add('g', "ngpus", "N", "GPUs, and so ranks, of a thread (1); implies --device gpu",
             [this](const auto& text) { devices = static_cast<int>(parseInteger(text, 1, 1024)); });
  parser.group("Sizes, as in nccl-tests");
  parser.add('b', "minbytes", "BYTES", "smallest size; K, M and G are accepted (" + shownBytes(defaultBytes) + ")",
             [this](const auto& text) {
               minBytes = parseBytes(text);
               minGiven = true;
             });
  parser.add('e', "maxbytes", "BYTES", "largest size (as -b's default, at least -b)", [this](const auto& text) {
    maxBytes = parseBytes(text);
    maxGiven = true;
  });
  parser.add('i', "stepbytes", "BYTES", "step between sizes (1M)",
             [this](const auto& text) { stepBytes = parseBytes(text); });
  parser.add('f', "stepfactor", "N", "factor between sizes, instead of a step", integer(factor, 1, 1 << 20));
  parser.group("Timing, as in nccl-tests");
  parser.add('n', "iters", "N", "iterations of a timed loop (20)", integer(iterations, 1, kMostIterations));
  parser.add('w', "warmup_iters", "N", "iterations before the first timed loop (5)",
             integer(warmup, 0, kMostIterations));
  parser.add('m', "agg_iters", "N", "operations per iteration, one after the other (1)",
             integer(aggregate, 1, kMostIterations));
  parser.add('N', "run_cycles", "N", "rounds over all sizes (1); 0: endless", integer(cycles, 0, kMostIterations));
  parser.add('a', "average", "0|1|2|3", "time of rank 0, mean, least or most over the ranks (3)",
             integer(average, 0, 3));
  parser.addOptional('I', "per_iter_timing", "0|1",
                     "time every iteration and print least, most, 99 % quantile, scatter", integer(perIteration, 0, 1));
  parser.add('K', "per_iter_skip", "N", "iterations at the start of a loop that -I's columns leave out (0)",
             integer(perIterationSkip, 0, kMostIterations));
  parser.addOptional('z', "blocking", "0|1|2|3",
                     "the host waits: 0 at the end of a loop; 1 after each operation, and then for all ranks;\n"
                     "2 after each operation; 3 after each iteration, and for all ranks outside of the time (0)",
                     integer(blocking, 0, 3));
  parser.addOptional('G', "cudagraph", "N", "GPUs: a loop is a CUDA graph, launched N times (0: no graph)",
                     integer(graphLaunches, 0, kMostIterations));
  parser.addOptional('C', "report_cputime", "0|1", "the time until the calls have returned, not until all is done",
                     integer(cpuTime, 0, 1));
  parser.group("Checks and reports, as in nccl-tests");
  parser.addOptional('c', "check", "N", "iterations with exactly compared results (1)",
                     integer(check, 0, kMostIterations));
  parser.addOptional('S', "report_timestamps", "0|1", "end each line with the date and time",
                     integer(timestamps, 0, 1));
  parser.addOptional('M', "memory", "0|1", "report memory use", integer(memory, 0, 1));
  parser.add('u', "unalign", "N", "buffers start N elements of 4 bytes after an aligned address (0)",
             integer(unalign, 0, 1 << 20));
  parser.add('J', "output_file", "FILE", "also write JSON to FILE, or FILE.0, FILE.1, ... if that exists",
             [this](const auto& text) { jsonPath = text; });
  parser.add('T', "timeout", "S", "seconds after which a silent rank is an error (the library's default)",
             [this](const auto& text) { timeoutMs = static_cast<int>(parseNumber(text, 0, 2e6) * 1000); });
  parser.add('V', "device_cta_count", "N", "CTAs of a collective on a GPU (the library's default)",
             integer(ctas, 1, 128));
  parser.group("seqpar's options, for all binaries");
  parser.addWithVariable("device", "host|gpu", "where buffers are (host)", "SEQPAR_PERF_DEVICE",
                         [this](const auto& text) {
                           gpu = parseName(text, {{"host", 0}, {"gpu", 1}}) == 1;
                           deviceGiven = true;
                         });
  parser.add(0, "gpus", "N", "ranks share the first N GPUs of each host (all)", integer(gpus, 1, 1024));
  parser.add(0, "repeats", "N", "timed loops per row; the result is their median (5)", integer(repeats, 1, 1000));
  parser.add('l', "loop_seconds", "S", "loops that would take longer run fewer iterations (1); 0: never",
             [this](const auto& text) { loopSeconds = parseNumber(text, 0, 1e6); });
  parser.add('B', "barrier", "", "barrier before every iteration: the time of a single one",
             [this](const auto&) { barrier = true; });
  parser.add(0, "peers", "", "also measure MPI in the same run (needs mpirun); on GPUs NCCL and the limits",
             [this](const auto&) { peers = true; });
}

void Settings::addIgnoredTo(OptionParser& parser) {
  parser.group("nccl-tests' options without effect here");
  const auto ignore = [&](char shortName, const char* name, const char* why) {
    if (parser.has(shortName)) return;
    parser.add(shortName, name, "VALUE", why, [this, shortName, why](const std::string& text) {
      notes.push_back(std::string{'-', shortName, ' '} + text + " has no effect: " + why);
    });
  };
  ignore('o', "op", "nothing is reduced");
  ignore('d', "datatype", "the type does not change the moved bytes");
  ignore('r', "root", "no operation here has a root");
  ignore('p', "parallel_init", "ranks are always created in parallel");
  ignore('y', "stream_null", "work is on streams that the binary creates");
  ignore('R', "local_register", "buffers are the library's memory, which its peers map");
  ignore('x', "cta_policy", "the library chooses the CTAs; -V limits them");
  parser.add('D', "device_implementation", "0", "there is no other implementation",
             [](const std::string& text) { parseInteger(text, 0, 0); });
}

void Settings::finish(size_t defaultBytes) {
  readVariable("NCCL_TESTS_MIN_BW", [this](const auto& text) { minBandwidth = parseNumber(text, 0, 1e9); });
  readVariable("NCCL_TESTS_DEVICE", integer(firstGpu, 0, 1024));
  if (const char* mask = variable("NCCL_TESTS_SPLIT_MASK")) {
    split = std::string("AND 0x") + (strncasecmp(mask, "0x", 2) == 0 ? mask + 2 : mask);
  } else if (const char* expression = variable("NCCL_TESTS_SPLIT")) {
    split = expression;
  }
  if (!split.empty()) splitColor(split, 0);

  if (!minGiven) minBytes = maxGiven ? std::min(maxBytes, defaultBytes) : defaultBytes;
  if (!maxGiven) maxBytes = std::max(minBytes, defaultBytes);
  if (maxBytes < minBytes) {
    throw UsageError("option -e: " + std::to_string(maxBytes) + " is less than -b's " + std::to_string(minBytes));
  }
  if (factor == 1 && stepBytes == 0 && maxBytes > minBytes) throw UsageError("option -i: a step of 0 never ends");
  if (factor > 1 && minBytes == 0) throw UsageError("option -f: a factor needs a size above 0 in -b");
  if (devices > 0 && !deviceGiven) gpu = true;
  if (graph() && !gpu) throw UsageError("option -G: there are CUDA graphs only with --device gpu");
  if (graph() && perIteration) {
    notes.emplace_back("-I has no effect: the iterations of a CUDA graph (-G) cannot be timed one by one");
    perIteration = false;
  }
  if (graph() && blocking != Blocking::None) {
    notes.emplace_back("-z has no effect: the host cannot wait within a CUDA graph (-G)");
    blocking = Blocking::None;
  }
  if (perIterationSkip >= iterations || (perIterationSkip > 0 && !perIteration)) {
    notes.emplace_back("-K has no effect: expected fewer than -n's iterations, and -I");
    perIterationSkip = 0;
  }
}

std::vector<size_t> Settings::sizes() const {
  std::vector<size_t> all;
  for (size_t size = minBytes; size <= maxBytes; size = factor > 1 ? size * factor : size + stepBytes) {
    all.push_back(size);
    if (size == maxBytes) break;
  }
  return all;
}

int splitColor(const std::string& expression, int rank) {
  struct Operator {
    const char* name;
    int (*apply)(int, int);
  };
  static constexpr auto both = [](int a, int b) { return a & b; };
  static constexpr auto either = [](int a, int b) { return a | b; };
  static constexpr auto rest = [](int a, int b) { return a % b; };
  static constexpr auto quotient = [](int a, int b) { return a / b; };
  static constexpr std::array<Operator, 8> kOperators{{{"AND", both},
                                                       {"&", both},
                                                       {"OR", either},
                                                       {"|", either},
                                                       {"MOD", rest},
                                                       {"%", rest},
                                                       {"DIV", quotient},
                                                       {"/", quotient}}};
  for (const auto& [name, apply] : kOperators) {
    const size_t length = std::char_traits<char>::length(name);
    if (strncasecmp(expression.c_str(), name, length) != 0) continue;
    const char* digits = expression.c_str() + length;
    while (*digits == ' ') ++digits;
    const bool binary = strncasecmp(digits, "0b", 2) == 0;
    if (binary) digits += 2;
    char* end = nullptr;
    const long value = std::strtol(digits, &end, binary ? 2 : 0);
    if (end == digits || *end != '\0' || value < 0 || value > 1 << 30) break;
    if (value == 0 && (apply == +rest || apply == +quotient)) break;
    return apply(rank, static_cast<int>(value));
  }
  throw UsageError("environment variable NCCL_TESTS_SPLIT: '" + expression +
                   "' is not AND, OR, MOD or DIV (or & | % /) and a number");
}

}  // namespace seqpar::perf
