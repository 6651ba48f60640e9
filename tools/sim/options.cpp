#include "options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "models.h"
#include "plot.h"

namespace seqpar::sim {
namespace {

constexpr int kUsage = 2;
constexpr double kMostSize = 1LL << 40;

/// A check of one value: a whole number of a range.
CLI::Validator whole(int least, int most) {
  return {[=](std::string& text) {
            int value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
              return std::string();
            }
            return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " + std::to_string(most);
          },
          "INT in [" + std::to_string(least) + " - " + std::to_string(most) + "]"};
}

CLI::Validator named() {
  return {[](std::string& text) { return text.empty() ? "is empty, expected a name" : std::string(); }, ""};
}

CLI::Validator size(const std::string& option) {
  return {[=](std::string& text) {
            try {
              parseSize(option, text);
              return std::string();
            } catch (const std::invalid_argument& error) {
              return std::string(error.what()).substr(option.size() + 1);
            }
          },
          ""};
}

void addCases(CLI::App& app, Options& o) {
  app.add_option("--machine", o.machine, "installed machine or JSON file")->check(named())->capture_default_str();
  auto* const nodes = app.add_option("--nodes", o.nodes, "nodes; a list simulates each")
                          ->delimiter(',')
                          ->check(whole(1, Options::kMostRanks))
                          ->capture_default_str();
  app.add_option("--gpus-per-node", o.gpus, "instead of the machine file's")->check(whole(1, Options::kMostRanks));
  app.add_option("--ranks", o.ranks, "instead of nodes x GPUs of a node")
      ->check(whole(1, Options::kMostRanks))
      ->excludes(nodes);
  app.add_option("--algo", o.algo, "all, auto, or names separated by commas")->check(named())->capture_default_str();
  app.add_flag("--mapped", o.mapped,
               "the caller's memory is of seqparMemAlloc(): on hosts the ranks of a node copy it once");
  app.add_option(
         "--what-if", o.changes,
         "changes of the machine separated by ';': net.gbs*=2, local.alpha_us=1, rank[17].rate*=0.5 (.local, .net), "
         "rank[17].net=down")
      ->delimiter(';');
}

/// Returns the options that only attention has.
std::vector<CLI::Option*> addAttention(CLI::App& app, Options& o) {
  return {
      app.add_option("--tokens", o.tokens, "tokens of the sequence, such as 128K or 1M; a list simulates each")
          ->delimiter(',')
          ->check(size("--tokens"))
          ->capture_default_str(),
      app.add_flag("--tokens-per-gpu", o.perGpu, "--tokens is the number of one GPU's tokens"),
      app.add_option("--model", o.model, modelNames() + ", FAMILY:HEADSxDIM, or a JSON file")
          ->check(named())
          ->capture_default_str(),
      app.add_option("--pass", o.pass, "forward or step")
          ->check(CLI::IsMember({"forward", "step"}))
          ->capture_default_str(),
      app.add_option("--mask", o.mask, "of softmax attention")
          ->check(CLI::IsMember({"causal", "full"}))
          ->capture_default_str(),
      app.add_option("--layout", o.layout, "instead of the algorithm's")
          ->check(CLI::IsMember({"contiguous", "zigzag", "striped"})),
      app.add_option("--inner", o.inner,
                     "seqparAttnDesc_t::inner: mesh shapes, windows, Ulysses groups; a list compares them")
          ->delimiter(',')
          ->check(whole(0, Options::kMostRanks)),
      app.add_option("--wire", o.wire, "type of partial results")
          ->check(CLI::IsMember({"fp32", "bf16"}))
          ->capture_default_str(),
      app.add_flag("--reserve", o.reserve, "seqparAttnDesc_t::reserve"),
      app.add_option("--type", o.type, "type of the tensors")
          ->check(CLI::IsMember({"bf16", "fp32"}))
          ->capture_default_str(),
      app.add_flag("--explain", o.explain, "print seqparAttnPlanExplain() of rank 0"),
      app.add_flag("--choose", o.choose, "print the choice of auto and the times of its cost model; simulate nothing"),
  };
}

std::vector<CLI::Option*> addCollectives(CLI::App& app, Options& o) {
  auto* const scan =
      app.add_option("--scan", o.scan, "All-Scan instead of attention: OP,BYTES,...; OP sum, scalar, diag or matrix");
  auto* const ring = app.add_option("--ring", o.ring, "one step of a ring instead of attention: BYTES,...");
  auto* const exchange = app.add_option(
      "--exchange", o.exchange,
      "exchange instead of attention: OP,BYTES,...; OP shift, shift_pair, allgather, reducescatter, to_heads or "
      "to_sequence");
  ring->excludes(scan);
  exchange->excludes(scan)->excludes(ring);
  for (auto* const each : {scan, ring, exchange}) each->check(named());
  for (auto* const each : {ring, exchange}) each->excludes(app.get_option("--algo"));
  return {scan, ring, exchange};
}

/// Returns the options that write files.
std::vector<CLI::Option*> addOutputs(CLI::App& app, Options& o) {
  auto* const order =
      app.add_option("--order", o.order, "write the messages of each rank in their order (CSV) to this file");
  auto* const plot =
      app.add_option("--plot", o.plot, "draw curves of all rows against GPUs (or tokens) to this SVG file");
  app.add_option("--plot-value", o.plotValue, "value of the curves")
      ->check(CLI::IsMember(plotValues()))
      ->capture_default_str()
      ->needs(plot);
  app.add_option("--plot-title", o.plotTitle, "title of the plot")->needs(plot);
  app.add_option("--published", o.published, "CSV of algorithm,x,value: points that the plot draws next to the curves")
      ->needs(plot);
  auto* const csv = app.add_option("--csv", o.csv, "write all rows to this file");
  auto* const trace = app.add_option(
      "--trace", o.trace, "write a timeline (JSON for Perfetto): auto's algorithm, or if it has no row the fastest");
  app.add_option("--trace-ranks", o.traced, "ranks of the timeline")
      ->check(whole(1, Options::kMostRanks))
      ->capture_default_str()
      ->needs(trace);
  return {order, plot, csv, trace};
}

}  // namespace

std::optional<int> readOptions(int argc, char** argv, Options& options) {
  CLI::App app(
      "Runs the library's own plans, schedules and choices for every rank of a machine that a file describes, "
      "on virtual time, and prints the predicted times of attention and of a whole model.",
      "seqpar_sim");
  auto* const measure =
      app.add_option("--measure", options.measured,
                     "write a machine file of this machine to this file, by seqpar_measure, which has further options");
  auto* const measureGpus =
      app.add_option("--measure-gpus", options.measuredGpus, "GPUs that --measure measures, without it the host")
          ->check(whole(2, 1024))
          ->needs(measure);
  addCases(app, options);
  const auto attention = addAttention(app, options);
  const auto collectives = addCollectives(app, options);
  auto* const calls =
      app.add_option("--calls", options.calls,
                     "of --scan, --ring or --exchange, one after the other; times and bytes are of one call")
          ->check(whole(1, 1000));
  const auto outputs = addOutputs(app, options);
  for (auto* const collective : collectives) {
    for (auto* const each : attention) collective->excludes(each);
  }
  for (auto* const output : outputs) output->check(named())->excludes(app.get_option("--choose"));
  try {
    app.parse(argc, argv);
    if (calls->count() > 0 && !options.ofCollectives())
      throw CLI::RequiresError("--calls", "--scan, --ring or --exchange");
    for (const auto* const each : app.get_options()) {
      const bool other = each != measure && each != measureGpus && each->count() > 0;
      if (!options.measured.empty() && other) throw CLI::ExcludesError("--measure", each->get_name());
    }
    if (measure->count() > 0 && options.measured.empty())
      throw CLI::ValidationError("--measure", "is empty, expected a file");
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
}

std::vector<std::string> split(const std::string& option, const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text + ",");
  for (std::string part; std::getline(stream, part, ',');) {
    if (part.empty())
      throw std::invalid_argument(option + " " + text + " has an empty entry, expected values between commas");
    parts.push_back(part);
  }
  return parts;
}

int64_t parseSize(const std::string& option, const std::string& text) {
  const auto wrong = [&](const char* why) {
    throw std::invalid_argument(option + " '" + text + "' is " + why +
                                ", expected a number with K, M, G or no unit, such as 64K");
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string unit(end, text.data() + text.size());
  const std::map<std::string, int> powers{{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}};
  if (error == std::errc::invalid_argument || !powers.contains(unit)) wrong("not a size");
  const double value = std::ldexp(number, powers.contains(unit) ? powers.at(unit) : 0);
  if (error != std::errc() || !(value >= 1 && value <= kMostSize)) wrong("not from 1 to 1024G");
  if (value != std::floor(value)) wrong("not a whole number");
  return static_cast<int64_t>(value);
}

void checkOutputs(const Options& options) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> named;
  const std::pair<const char*, const std::string*> outputs[] = {
      {"--csv", &options.csv}, {"--order", &options.order}, {"--plot", &options.plot}, {"--trace", &options.trace}};
  for (const auto& [option, path] : outputs) {
    if (path->empty()) continue;
    std::error_code ignored;
    const auto [first, added] = named.try_emplace(fs::weakly_canonical(*path, ignored).string(), option);
    if (!added) throw std::invalid_argument(first->second + " and " + option + " name the same file, " + *path);
    const bool existed = fs::exists(*path, ignored);
    errno = 0;
    if (!std::ofstream(*path, std::ios::app)) {
      throw std::runtime_error(std::string(option) + " " + *path + " cannot be written (" + std::strerror(errno) +
                               "), expected a file in an existing folder");
    }
    if (!existed) fs::remove(*path, ignored);
  }
}

}  // namespace seqpar::sim
