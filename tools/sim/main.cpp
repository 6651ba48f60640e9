// seqpar_sim: predicts sequence parallelism on machines that are described by files.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "attn/problem/problem.h"
#include "cases.h"
#include "models.h"
#include "options.h"
#include "plot.h"
#include "report.h"

namespace {

using namespace seqpar::sim;

constexpr int kUsage = 2;
/// Runs seqpar_measure, which is linked with the real library, instead of this program.
[[noreturn]] void measure(const std::string& file, int gpus) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::string name = "seqpar_measure", output = "--output", path = file, option = "-g", count = std::to_string(gpus);
  std::vector<char*> arguments{name.data(), output.data(), path.data()};
  if (gpus > 0) arguments.insert(arguments.end(), {option.data(), count.data()});
  arguments.push_back(nullptr);
  for (const auto& program : {folder / name, folder / ".." / "perf" / name}) execv(program.c_str(), arguments.data());
  execvp(name.c_str(), arguments.data());
  throw std::runtime_error("--measure: there is no program seqpar_measure next to seqpar_sim or in PATH");
}

void save(const std::string& path, const auto& write) {
  std::ofstream file(path);
  write(file);
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

/// The machine after --gpus-per-node and --what-if.
Machine machineOf(const Options& options) {
  const std::string text = machineText(options.machine);
  Machine machine;
  try {
    machine = readMachine(text, options.changes);
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    if (what.starts_with("--what-if")) throw;
    throw std::invalid_argument("--machine " + options.machine + (options.changes.empty() ? "" : " after --what-if") +
                                ": " + what);
  }
  if (options.gpus > 0) machine.gpus = options.gpus;
  return machine;
}

int ranksOf(const Options& options, const Machine& machine, int nodes) {
  const int64_t ranks = options.ranks > 0 ? options.ranks : int64_t{nodes} * machine.gpus;
  if (ranks > Options::kMostRanks) {
    throw std::invalid_argument("--nodes " + std::to_string(nodes) + " of " + std::to_string(machine.gpus) +
                                " ranks are " + std::to_string(ranks) + " ranks, expected at most " +
                                std::to_string(Options::kMostRanks));
  }
  checkRanks(machine, static_cast<int>(ranks));
  return static_cast<int>(ranks);
}

void writeFiles(const Options& options, const Machine& machine, const Model& model, const std::vector<Row>& all,
                const std::vector<Timeline>& timelines) {
  if (!options.csv.empty()) save(options.csv, [&](std::ostream& out) { writeCsv(out, all); });
  if (!options.order.empty()) {
    save(options.order, [&](std::ostream& out) {
      out << "case,algorithm,rank,kind,peer,bytes\n";
      for (size_t i = 0; i < all.size(); ++i) {
        std::stringstream lines(all[i].outcome.order);
        for (std::string line; std::getline(lines, line);) out << i << "," << all[i].name() << "," << line << "\n";
      }
    });
  }
  if (!options.plot.empty()) {
    const bool attention = !options.ofCollectives();
    PlotOptions plot{options.plotValue, options.plotTitle, options.forwardOnly() || !attention, machine.onHosts(), {}};
    if (plot.title.empty()) plot.title = (attention ? model.name : all.front().operation) + " on " + machine.name;
    if (!options.published.empty()) plot.published = readPublished(options.published);
    save(options.plot, [&](std::ostream& out) { writePlot(out, all, plot); });
  }
  if (!options.trace.empty()) save(options.trace, [&](std::ostream& out) { writeTrace(out, timelines); });
}

void simulate(const Options& options) {
  const seqpar::attn::SharedScoreTables shared;  // of all cases
  const Machine machine = machineOf(options);
  const Model model = readModel(options.model);
  checkOutputs(options);
  if (!options.published.empty()) readPublished(options.published);
  std::vector<Row> all;
  std::vector<Timeline> timelines;
  for (const int nodes : options.nodes) ranksOf(options, machine, nodes);
  for (const int nodes : options.nodes) {
    const int ranks = ranksOf(options, machine, nodes);
    if (options.ofCollectives()) {
      const auto rows =
          options.scan.empty() ? runTransfers(machine, options, ranks) : runScans(machine, options, ranks);
      timelines.clear();
      if (!options.trace.empty()) keepTimeline(rows, true, timelines);
      all.insert(all.end(), rows.begin(), rows.end());
      continue;
    }
    for (const auto& text : options.tokens) {
      timelines.clear();
      const int64_t tokens = parseSize("--tokens", text) * (options.perGpu ? ranks : 1);
      const auto rows = runModel(machine, options, model, ranks, tokens, timelines);
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  writeGuesses(std::cout, machine.guesses, options.explain);
  writeFiles(options, machine, model, all, timelines);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const auto status = readOptions(argc, argv, options)) return *status;
  try {
    if (!options.measured.empty()) measure(options.measured, options.measuredGpus);
    simulate(options);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::cerr << "seqpar_sim: " << error.what() << "\n";
    return kUsage;
  } catch (const std::exception& error) {
    std::cerr << "seqpar_sim: " << error.what() << "\n";
    return 1;
  }
}
