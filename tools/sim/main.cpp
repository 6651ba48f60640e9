// seqpar_sim: predicts sequence parallelism on machines that are described by files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "attn/problem/problem.h"
#include "models.h"
#include "plot.h"
#include "report.h"
#include "scan/registry.h"
#include "seqpar/seqpar.h"

namespace {

using namespace seqpar::sim;

constexpr int kUsage = 2;
constexpr int kMostRanks = 4096;

int64_t parseSize(const std::string& text) {
  size_t end = 0;
  const double number = std::stod(text, &end);
  int64_t factor = 1;
  if (end < text.size()) {
    const std::string units = "KMG";
    const auto unit = units.find(text[end]);
    if (unit == std::string::npos || end + 1 != text.size())
      throw std::invalid_argument("'" + text + "' is not a size");
    factor = int64_t{1} << (10 * (unit + 1));
  }
  const double value = number * static_cast<double>(factor);
  if (!(value >= 1 && value <= 1e15)) throw std::invalid_argument("'" + text + "' is out of range");
  return static_cast<int64_t>(value);
}

struct Options {
  std::string machine = "h200x8", model = "llama3-8b", algo = "all", pass = "step", mask = "causal";
  std::string measured, scan, ring, exchange, type = "bf16", layout, csv, trace, order, plot, plotValue = "time",
                                              plotTitle, published, wire = "fp32";
  std::vector<std::string> tokens{"128K"};
  std::vector<int> nodes{1};
  std::vector<std::string> changes;
  std::vector<int> inner{0};
  int gpus = 0, ranks = 0, traced = 16, calls = 1, measuredGpus = 0;
  bool perGpu = false, explain = false, reserve = false;

  bool forwardOnly() const { return pass == "forward"; }
  bool ofCollectives() const { return !scan.empty() || !ring.empty() || !exchange.empty(); }
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<int> attentionAlgorithms(const std::string& list, bool softmax) {
  const auto all = algorithmsFor(softmax);
  if (list == "all") return all;
  if (list == "auto") return {};
  std::vector<int> ids;
  for (const auto& name : split(list)) {
    bool found = false;
    for (const int id : all) {
      if (name != seqparAttnAlgorithmName(id)) continue;
      ids.push_back(id);
      found = true;
    }
    bool other = false;
    for (const int id : algorithmsFor(!softmax)) other = other || name == seqparAttnAlgorithmName(id);
    if (!found && !other)
      throw std::invalid_argument("--algo " + name +
                                  " is no algorithm here; expected all, or auto alone, or names with commas");
  }
  return ids;
}

/// All algorithms of one kind of attention, and the choice of `auto`.
std::vector<Row> runAttention(const Machine& machine, const Options& options, const Model& model, bool softmax,
                              int ranks, int64_t tokens, std::vector<Span>& spans) {
  Case given;
  given.ranks = ranks;
  given.desc = attentionOf(model, softmax, tokens, options.mask == "full");
  given.desc.training = options.forwardOnly() ? 0 : 1;
  given.desc.dataType = options.type == "fp32" ? seqparFloat32 : seqparBfloat16;
  given.desc.wireType = options.wire == "bf16" ? seqparBfloat16 : seqparFloat32;
  given.desc.reserve = options.reserve ? 1 : 0;
  given.layout = options.layout == "contiguous" ? seqparContiguous
                 : options.layout == "zigzag"   ? seqparZigzag
                 : options.layout == "striped"  ? seqparStriped
                                                : -1;
  std::string explain;
  given.desc.inner = options.inner.front();
  const std::string choice = chosen(machine, given, explain);
  auto ids = attentionAlgorithms(options.algo, softmax);
  if (ids.empty()) ids = attentionAlgorithms(choice, softmax);
  given.traced = options.trace.empty() ? 0 : options.traced;
  given.ordered = !options.order.empty();
  std::vector<Row> rows;
  for (const int id : ids) {
    for (const int inner : options.inner) {
      given.desc.algorithm = id;
      given.desc.inner = inner;
      Row row;
      row.ranks = ranks;
      row.operation = softmax ? "softmax" : "linear";
      row.size = tokens;
      row.inner = options.inner.size() > 1 ? inner : 0;
      row.outcome = run(machine, given);
      row.chosen = row.outcome.algorithm == choice && inner == options.inner.front();
      if (row.chosen || ids.size() == 1) spans = row.outcome.spans;
      rows.push_back(std::move(row));
    }
  }
  std::cout << "\n"
            << (softmax ? "softmax" : "linear") << " attention, " << tokens << " tokens, " << ranks << " GPUs of "
            << machine.name << "\n";
  writeChoice(std::cout, choice, explain, rows, options.forwardOnly());
  if (options.explain) std::cout << explain << "\n";
  return rows;
}

/// tokens/s of a GPU for each algorithm: its attention in all layers of its kind, the other kind's by `auto`.
void estimateModel(const Machine& machine, const Options& options, const Model& model, std::vector<Row>& softmax,
                   std::vector<Row>& linear, int ranks, int64_t tokens) {
  const double local = static_cast<double>(tokens) / ranks;
  const double others = otherWorkUs(model, machine, local, options.forwardOnly());
  const auto attention = [&](const Row& row) {
    return options.forwardOnly() ? row.outcome.forwardUs : row.outcome.stepUs;
  };
  const auto ofChoice = [&](const std::vector<Row>& rows) {
    double least = -1;
    for (const auto& row : rows) {
      if (row.chosen && row.outcome.refusal.empty()) return attention(row);
      const bool usable = row.outcome.refusal.empty() && row.outcome.algorithm != "local";
      if (usable && (least < 0 || attention(row) < least)) least = attention(row);
    }
    return least;
  };
  const auto fill = [&](std::vector<Row>& rows, int64_t layers, const std::vector<Row>& rest, int64_t restLayers) {
    const double fixed = restLayers == 0 ? 0 : static_cast<double>(restLayers) * ofChoice(rest);
    for (auto& row : rows) {
      if (!row.outcome.refusal.empty() || fixed < 0) continue;
      row.tokensPerSecond = local / (static_cast<double>(layers) * attention(row) + fixed + others) * 1e6;
    }
  };
  fill(softmax, model.softmaxLayers, linear, model.linearLayers);
  fill(linear, model.linearLayers, softmax, model.softmaxLayers);
}

std::vector<Row> runScans(const Machine& machine, const Options& options, int ranks) {
  std::vector<Row> rows;
  const auto parts = split(options.scan);
  const std::vector<std::string> ops{"sum", "scalar", "diag", "matrix"};
  const auto op = std::find(ops.begin(), ops.end(), parts.front());
  if (parts.size() < 2 || op == ops.end())
    throw std::invalid_argument("--scan is not OP,BYTES,... with OP sum, scalar, diag or matrix");
  for (size_t i = 1; i < parts.size(); ++i) {
    Case given;
    given.ranks = ranks;
    given.scanBytes = parseSize(parts[i]);
    given.scan.op = static_cast<int>(op - ops.begin());
    given.scan.bounded = 1;
    const auto choice = run(machine, given).algorithm;
    for (const auto& row : seqpar::scanAlgorithms()) {
      const auto wanted = split(options.algo);
      if (options.algo == "auto"
              ? choice != row.name
              : options.algo != "all" && std::find(wanted.begin(), wanted.end(), row.name) == wanted.end()) {
        continue;
      }
      given.scan.algorithm = row.id;
      given.calls = options.calls;
      given.ordered = !options.order.empty();
      Row out;
      out.ranks = ranks;
      out.operation = "scan " + parts.front();
      out.size = given.scanBytes;
      out.outcome = run(machine, given);
      out.outcome.algorithm = row.name;
      out.chosen = choice == row.name;
      rows.push_back(std::move(out));
    }
  }
  return rows;
}

/// Steps of rings, or exchanges.
std::vector<Row> runTransfers(const Machine& machine, const Options& options, int ranks) {
  std::vector<Row> rows;
  auto sizes = split(options.ring.empty() ? options.exchange : options.ring);
  Case given;
  given.ranks = ranks;
  given.ordered = !options.order.empty();
  given.calls = options.calls;
  if (options.ring.empty()) {
    const auto& names = exchangeNames();
    given.exchange = sizes.front();
    if (sizes.size() < 2 || std::find(names.begin(), names.end(), given.exchange) == names.end())
      throw std::invalid_argument(
          "--exchange is not OP,BYTES,... with OP shift, shift_pair, allgather, reducescatter, to_heads or "
          "to_sequence");
    sizes.erase(sizes.begin());
  }
  for (const auto& size : sizes) {
    (options.ring.empty() ? given.exchangeBytes : given.ringBytes) = parseSize(size);
    Row row;
    row.ranks = ranks;
    row.operation = options.ring.empty() ? given.exchange : "ring";
    row.size = parseSize(size);
    row.outcome = run(machine, given);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The attention of a model for one number of tokens.
std::vector<Row> runModel(const Machine& machine, const Options& options, const Model& model, int ranks, int64_t tokens,
                          std::vector<Span>& spans) {
  if (tokens % (2 * ranks) != 0) {
    throw std::invalid_argument("--tokens " + std::to_string(tokens) + " is not a multiple of twice the " +
                                std::to_string(ranks) + " ranks; shards must have equal lengths");
  }
  std::vector<Row> softmax, linear, rows;
  if (model.softmaxLayers > 0) softmax = runAttention(machine, options, model, true, ranks, tokens, spans);
  if (model.linearLayers > 0) linear = runAttention(machine, options, model, false, ranks, tokens, spans);
  estimateModel(machine, options, model, softmax, linear, ranks, tokens);
  for (auto* const kind : {&softmax, &linear}) {
    if (kind->empty()) continue;
    writeTable(std::cout, *kind, options.forwardOnly());
    rows.insert(rows.end(), kind->begin(), kind->end());
  }
  return rows;
}

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

void simulate(const Options& options) {
  const seqpar::attn::SharedScoreTables shared;  // of all cases
  Machine machine = readMachine(machineText(options.machine), options.changes);
  if (options.gpus > 0) machine.gpus = options.gpus;
  const Model model = readModel(options.model);
  std::vector<Row> all;
  std::vector<Span> spans;
  for (const int nodes : options.nodes) {
    const int ranks = options.ranks > 0 ? options.ranks : nodes * machine.gpus;
    if (ranks < 1 || ranks > kMostRanks)
      throw std::invalid_argument("there are " + std::to_string(ranks) + " ranks, expected 1 to 4096");
    if (options.ofCollectives()) {
      const auto rows =
          options.scan.empty() ? runTransfers(machine, options, ranks) : runScans(machine, options, ranks);
      writeTable(std::cout, rows, true);
      all.insert(all.end(), rows.begin(), rows.end());
      continue;
    }
    for (const auto& text : options.tokens) {
      const auto rows = runModel(machine, options, model, ranks, parseSize(text) * (options.perGpu ? ranks : 1), spans);
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  if (!machine.guesses.empty()) {
    std::cout << "guesses of the machine file:";
    for (const auto& key : machine.guesses) std::cout << " " << key;
    std::cout << "\n";
  }
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
    PlotOptions plot{options.plotValue, options.plotTitle, options.forwardOnly() || !attention, {}};
    if (plot.title.empty()) plot.title = (attention ? model.name : "collective") + " on " + machine.name;
    if (!options.published.empty()) plot.published = readPublished(options.published);
    save(options.plot, [&](std::ostream& out) { writePlot(out, all, plot); });
  }
  if (!options.trace.empty()) save(options.trace, [&](std::ostream& out) { writeTrace(out, spans); });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Runs the library's own plans, schedules and choices for every rank of a machine that a file describes, "
      "on virtual time, and prints the predicted times of attention and of a whole model.",
      "seqpar_sim");
  app.add_option("--machine", options.machine, "installed machine or JSON file")->capture_default_str();
  app.add_option("--measure", options.measured,
                 "write a machine file of this machine to this file, by seqpar_measure, which has further options");
  app.add_option("--measure-gpus", options.measuredGpus,
                 "GPUs that --measure measures, two or more; without it the host")
      ->check(CLI::Range(2, 1024));
  app.add_option("--nodes", options.nodes, "nodes; a list simulates each")->delimiter(',')->capture_default_str();
  app.add_option("--gpus-per-node", options.gpus, "instead of the machine file's");
  app.add_option("--ranks", options.ranks, "instead of nodes x GPUs of a node");
  app.add_option("--tokens", options.tokens, "tokens of the sequence, such as 128K or 1M; a list simulates each")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag("--tokens-per-gpu", options.perGpu, "--tokens is the number of one GPU's tokens");
  app.add_option("--model", options.model, modelNames() + ", or a JSON file")->capture_default_str();
  app.add_option("--algo", options.algo, "all, auto, or names separated by commas")->capture_default_str();
  app.add_option("--pass", options.pass, "forward or step")
      ->check(CLI::IsMember({"forward", "step"}))
      ->capture_default_str();
  app.add_option("--mask", options.mask, "of softmax attention")
      ->check(CLI::IsMember({"causal", "full"}))
      ->capture_default_str();
  app.add_option("--layout", options.layout, "instead of the algorithm's")
      ->check(CLI::IsMember({"contiguous", "zigzag", "striped"}));
  app.add_option("--inner", options.inner,
                 "seqparAttnDesc_t::inner: mesh shapes, windows, Ulysses groups; a list compares them")
      ->delimiter(',');
  app.add_option("--wire", options.wire, "type of partial results")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_flag("--reserve", options.reserve, "seqparAttnDesc_t::reserve");
  app.add_option("--scan", options.scan, "All-Scan instead of attention: OP,BYTES,...; OP sum, scalar, diag or matrix");
  app.add_option("--ring", options.ring, "one step of a ring instead of attention: BYTES,...");
  app.add_option(
      "--exchange", options.exchange,
      "exchange instead of attention: OP,BYTES,...; OP shift, shift_pair, allgather, reducescatter, to_heads or "
      "to_sequence");
  app.add_option("--calls", options.calls,
                 "of --scan, --ring or --exchange, one after the other; times are of one call")
      ->check(CLI::Range(1, 1000));
  app.add_option("--type", options.type, "type of the tensors")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_option(
         "--what-if", options.changes,
         "changes of the machine separated by ';': net.gbs*=2, local.alpha_us=1, rank[17].rate*=0.5 (.local, .net), "
         "rank[17].net=down")
      ->delimiter(';');
  app.add_option("--order", options.order, "write the messages of each rank in their order (CSV) to this file");
  app.add_option("--plot", options.plot, "draw curves of all rows against GPUs (or tokens) to this SVG file");
  app.add_option("--plot-value", options.plotValue, "value of the curves")
      ->check(CLI::IsMember(plotValues()))
      ->capture_default_str();
  app.add_option("--plot-title", options.plotTitle, "title of the plot");
  app.add_option("--published", options.published,
                 "CSV of algorithm,x,value: points that the plot draws next to the curves");
  app.add_flag("--explain", options.explain, "print seqparAttnPlanExplain() of rank 0");
  app.add_option("--csv", options.csv, "write all rows to this file");
  app.add_option("--trace", options.trace, "write the timeline of auto's algorithm (JSON for Perfetto) to this file");
  app.add_option("--trace-ranks", options.traced, "ranks of the timeline")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
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
