#include "settings.h"

#include <sys/stat.h>

namespace seqpar::perf {
namespace {

void requireNew(const char* option, const std::string& path) {
  struct stat status {};
  if (!path.empty() && lstat(path.c_str(), &status) == 0) {
    throw UsageError(std::string("option ") + option + ": '" + path + "' exists; expected the name of a new file");
  }
}

}  // namespace

void Settings::addTo(OptionParser& parser) {
  parser.add('b', "minbytes", "BYTES", "smallest size (2M); K, M and G are accepted", [this](const std::string& text) {
    minBytes = parseBytes(text);
    sizesGiven = true;
  });
  parser.add('e', "maxbytes", "BYTES", "largest size (the smallest)", [this](const std::string& text) {
    maxBytes = parseBytes(text);
    sizesGiven = maxGiven = true;
  });
  parser.add('i', "stepbytes", "BYTES", "step between sizes (1M)",
             [this](const std::string& text) { stepBytes = parseBytes(text); });
  parser.add('f', "stepfactor", "N", "factor between sizes, instead of a step",
             [this](const std::string& text) { factor = static_cast<size_t>(parseInteger(text, 2, 1 << 20)); });
  parser.add('n', "iters", "N", "iterations of a timed loop (20)",
             [this](const std::string& text) { iterations = static_cast<int>(parseInteger(text, 1, 1000000)); });
  parser.add('w', "warmup_iters", "N", "iterations before the first timed loop (5)",
             [this](const std::string& text) { warmup = static_cast<int>(parseInteger(text, 0, 1000000)); });
  parser.add('r', "repeats", "N", "timed loops a row, of which the median counts (5)",
             [this](const std::string& text) { repeats = static_cast<int>(parseInteger(text, 1, 1000)); });
  parser.add('l', "loop_seconds", "S", "loops that would take longer run fewer iterations (1); 0: never",
             [this](const std::string& text) { loopSeconds = parseNumber(text, 0, 1e6); });
  parser.add('c', "check", "0|1", "compare every result exactly (1)",
             [this](const std::string& text) { check = parseInteger(text, 0, 1) == 1; });
  parser.add('z', "blocking", "0|1", "1: complete in the call; 0: through a stream (1; GPUs: always 0)",
             [this](const std::string& text) { blocking = parseInteger(text, 0, 1) == 1; });
  parser.add('a', "average", "0|1|2|3", "time of rank 0, mean, least or most over the ranks (3)",
             [this](const std::string& text) { average = static_cast<Average>(parseInteger(text, 0, 3)); });
  parser.add('B', "barrier", "", "barrier before every iteration: the time of one alone",
             [this](const std::string&) { barrier = true; });
  parser.add('I', "per_iter_timing", "", "time every iteration and print least, most and 99 % quantile",
             [this](const std::string&) { perIteration = true; });
  parser.add('J', "output_file", "FILE", "also write JSON to FILE, which must not exist",
             [this](const std::string& text) { jsonPath = text; });
  parser.add(0, "plot", "FILE", "also draw time against size into FILE, an SVG, which must not exist",
             [this](const std::string& text) { plotPath = text; });
  parser.add(0, "device", "host|gpu", "where buffers are (host)", [this](const std::string& text) {
    gpu = parseName(text, {{"host", 0}, {"gpu", 1}}) == 1;
  });
  parser.add('g', "ngpus", "N", "use the first N GPUs of each host (all); implies --device gpu",
             [this](const std::string& text) {
               gpus = static_cast<int>(parseInteger(text, 1, 1024));
               gpu = true;
             });
  parser.add('G', "graph", "", "GPUs: the iterations of a loop are one CUDA graph",
             [this](const std::string&) { graph = true; });
  parser.add('t', "nthreads", "N", "run N ranks as threads of this process (if nothing launched more: 2, or one a GPU)",
             [this](const std::string& text) { threads = static_cast<int>(parseInteger(text, 1, 1024)); });
  parser.add('T', "timeout", "S", "seconds after which a silent rank is an error (the library's default)",
             [this](const std::string& text) { timeoutMs = static_cast<int>(parseNumber(text, 0.001, 2e6) * 1000); });
  parser.add(0, "peers", "", "measure MPI's way as well, in the same run (needs mpirun); on GPUs NCCL's and the limits",
             [this](const std::string&) { peers = true; });
}

void Settings::finish() {
  if (!maxGiven) maxBytes = minBytes;
  if (maxBytes < minBytes) {
    throw UsageError("option -e: " + std::to_string(maxBytes) + " is less than -b's " + std::to_string(minBytes));
  }
  if (factor == 1 && stepBytes == 0 && maxBytes > minBytes) throw UsageError("option -i: a step of 0 never ends");
  if (factor > 1 && minBytes == 0) throw UsageError("option -f: a factor needs a size above 0 in -b");
  if (graph && !gpu) throw UsageError("option --graph: only with --device gpu");
  if (graph && perIteration) throw UsageError("option -I: the iterations of a --graph cannot be timed one by one");
  if (gpu) blocking = false;
  requireNew("-J", jsonPath);
  requireNew("--plot", plotPath);
}

std::vector<size_t> Settings::sizes() const {
  std::vector<size_t> all;
  for (size_t size = minBytes; size <= maxBytes; size = factor > 1 ? size * factor : size + stepBytes) {
    all.push_back(size);
    if (size == maxBytes) break;
  }
  return all;
}

}  // namespace seqpar::perf
