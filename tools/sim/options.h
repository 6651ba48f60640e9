// Options of seqpar_sim, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace seqpar::sim {

struct Options {
  static constexpr int kMostRanks = 4096;

  std::string machine = "h200x8", model = "llama3-8b", algo = "all", pass = "step", mask = "causal";
  std::string measured, scan, ring, exchange, type = "bf16", layout, csv, trace, order, plot, plotValue = "time",
                                              plotTitle, published, wire = "fp32";
  std::vector<std::string> tokens{"128K"};
  std::vector<int> nodes{1};
  std::vector<std::string> changes;
  std::vector<int> inner{0};
  int gpus = 0, ranks = 0, traced = 16, calls = 1, measuredGpus = 0;
  bool perGpu = false, explain = false, reserve = false, choose = false, mapped = false;

  bool forwardOnly() const { return pass == "forward"; }
  bool ofCollectives() const { return !scan.empty() || !ring.empty() || !exchange.empty(); }
  /// The option that names the collective, and its argument.
  const char* collective() const { return !scan.empty() ? "--scan" : !ring.empty() ? "--ring" : "--exchange"; }
  const std::string& collectiveText() const { return !scan.empty() ? scan : !ring.empty() ? ring : exchange; }
};

/// Stores the options. A value: the program's exit status, after a message or help has been printed.
std::optional<int> readOptions(int argc, char** argv, Options& options);

/// The parts of a list with commas. Throws std::invalid_argument that names the option if a part is empty.
std::vector<std::string> split(const std::string& option, const std::string& text);

/// A number with K, M, G or no unit. Throws std::invalid_argument that names the option.
int64_t parseSize(const std::string& option, const std::string& text);

/// Throws std::runtime_error that names the option if a file for output cannot be written, or is named twice.
void checkOutputs(const Options& options);

}  // namespace seqpar::sim
