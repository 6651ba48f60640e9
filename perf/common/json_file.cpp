#include "json_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "statistics.h"

extern char** environ;

namespace seqpar::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 3;

/// nccl-tests writes booleans as text.
const char* truth(bool value) {
  return value ? "true" : "false";
}

/// The variables that a run depends on. Other variables, and those that look like secrets, are left out.
Json environment() {
  Json list = Json::array();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool secret = false, wanted = false;
    for (const char* part : {"TOKEN", "SECRET", "PASSWORD", "KEY"}) {
      secret = secret || name.find(part) != std::string_view::npos;
    }
    for (const char* prefix : {"SEQPAR_", "NCCL_", "CUDA_", "UCX_", "OMP_", "OMPI_MCA_"}) {
      wanted = wanted || name.starts_with(prefix);
    }
    if (wanted && !secret) list.push_back(*entry);
  }
  return list;
}

Json timingOf(const Timing& timing, size_t bytes, const Settings& settings) {
  Json json;
  json[settings.cpuTime ? "cpu_time" : "time"] = timing.us;
  json["alg_bw"] = bandwidth(bytes, timing.us);
  json["bus_bw"] = bandwidth(bytes, timing.us);
  json["nwrong"] = timing.checked ? Json(timing.wrong) : Json(nullptr);
  return json;
}

Json iterationsOf(const IterationTimes& times, int skipped) {
  const Statistics statistics(times.counted);
  Json json{{"skipped_iterations", skipped}, {"min_us", statistics.min},         {"max_us", statistics.max},
            {"avg_us", statistics.mean},     {"p50_us", statistics.p50},         {"p95_us", statistics.p95},
            {"p99_us", statistics.p99},      {"stdev_us", statistics.deviation}, {"cv_pct", statistics.variation()},
            {"times_us", times.slowest}};
  if (times.ofRank.size() > 1) json["per_process_max_times_us"] = times.ofRank;
  return json;
}

/// The values of the label columns with role `wanted` in a plot.
std::string labelsOf(const Row& row, const Layout& layout, InPlot wanted) {
  std::string text;
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (layout.labels[i].inPlot == wanted) text += (text.empty() ? "" : " ") + row.labels[i];
  }
  return text;
}

/// The label in the column of this name, or `otherwise` if there is none.
std::string labelIn(const Row& row, const Layout& layout, const char* column, const char* otherwise) {
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (layout.labels[i].name == column) return row.labels[i];
  }
  return otherwise;
}

Json configOf(const RunFacts& facts, const Settings& settings) {
  Json json{{"nthreads", std::max(settings.threads, 1)},
            {"ngpus", std::max(settings.devices, 1)},
            {"minimum_bytes", settings.minBytes},
            {"maximum_bytes", settings.maxBytes}};
  if (settings.factor > 1) {
    json["step_factor"] = settings.factor;
  } else {
    json["step_bytes"] = settings.stepBytes;
  }
  json["warmup_iters"] = settings.warmup;
  json["iterations"] = settings.iterations;
  json["aggregated_iterations"] = settings.aggregate;
  json["validation"] = settings.check;
  json["graph"] = settings.graphLaunches;
  json["blocking_collectives"] = truth(settings.blocking != Blocking::None);
  json["per_iter_timing"] = truth(settings.perIteration);
  json["per_iter_skip"] = settings.perIterationSkip;
  json["parallel_init"] = truth(true);
  Json& devices = json["devices"] = Json::array();
  for (size_t r = 0; r < facts.ranks.size(); ++r) {
    const RankFacts& rank = facts.ranks[r];
    devices.push_back({{"rank", r},
                       {"group", 0},
                       {"pid", rank.pid},
                       {"hostname", rank.host},
                       {"device", rank.device},
                       {"device_hex", ""},
                       {"device_info", rank.deviceName}});
  }
  return json;
}

Json detailsOf(const RunFacts& facts, const Settings& settings) {
  Json json{{"program", facts.program}, {"version", facts.version}};
  json["config"] = {{"nranks", facts.ranks.size()},
                    {"repeats", settings.repeats},
                    {"loop_seconds", settings.loopSeconds},
                    {"barrier", settings.barrier},
                    {"barrier_us", facts.barrierUs},
                    {"blocking", static_cast<int>(settings.blocking)},
                    {"average", facts.average},
                    {"mode", facts.mode + "; " + facts.how},
                    {"gpu", settings.gpu},
                    {"graph", settings.graph()},
                    {"unalign", settings.unalign},
                    {"split", settings.split}};
  Json& transports = json["transports"] = Json::array();
  for (const RankFacts& rank : facts.ranks) transports.push_back(rank.transport);
  json["communicator"] = {{"alpha_us", facts.comm.alphaUs},
                          {"bandwidth_bytes_per_s", facts.comm.bandwidth},
                          {"overhead_us", facts.comm.overheadUs},
                          {"contention", facts.comm.contention},
                          {"reason", facts.comm.reason}};
  if (facts.limits.bandwidth > 0) {
    json["limits"] = {{"alpha_us", facts.limits.alphaUs}, {"bandwidth_bytes_per_s", facts.limits.bandwidth}};
  }
  return json;
}

int createNew(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
}

[[noreturn]] void failFile(const char* what, const std::string& path) {
  throw std::runtime_error(std::string("option -J: cannot ") + what + " '" + path + "': " + std::strerror(errno));
}

}  // namespace

struct JsonFile::Document {
  Json json;
};

JsonFile::JsonFile(const std::string& path) : document_(std::make_unique<Document>()), path_(path) {
  file_ = createNew(path_);
  for (int number = 0; file_ < 0 && errno == EEXIST; ++number) {
    path_ = path + "." + std::to_string(number);
    file_ = createNew(path_);
  }
  if (file_ < 0) failFile("create", path_);
}

JsonFile::~JsonFile() {
  if (file_ >= 0) close(file_);
}

void JsonFile::begin(const RunFacts& facts, const Settings& settings) {
  Json& json = document_->json;
  json["version"] = kVersion;
  json["start_time"] = facts.started;
  json["args"] = facts.arguments;
  json["env"] = environment();
  json["nccl_version"] = 0;
  json["config"] = configOf(facts, settings);
  json["seqpar"] = detailsOf(facts, settings);
  json["results"] = Json::array();
}

void JsonFile::row(const Row& row, const Layout& layout, const Settings& settings) {
  Json json{{"size", row.bytes},
            {"count", row.count},
            {"type", labelIn(row, layout, "type", "uint8")},
            {"redop", labelIn(row, layout, "op", "none")},
            {"root", "-1"},
            {"out_of_place", timingOf(row.outOfPlace, row.bytes, settings)}};
  if (row.outOfPlace.each) {
    json["out_of_place_per_iter"] = iterationsOf(*row.outOfPlace.each, settings.perIterationSkip);
  }
  if (row.inPlace) json["in_place"] = timingOf(*row.inPlace, row.bytes, settings);
  if (row.inPlace && row.inPlace->each) {
    json["in_place_per_iter"] = iterationsOf(*row.inPlace->each, settings.perIterationSkip);
  }
  json["actual_iterations"] = row.outOfPlace.iterations;
  const std::string panel = labelsOf(row, layout, InPlot::Panel);
  const std::string series = row.series.empty() ? labelsOf(row, layout, InPlot::Series) : row.series;
  json["experiment_name"] = panel + (panel.empty() || series.empty() ? "" : " ") + series;
  constexpr std::array<const char*, 3> kKinds{"library", "peer", "limit"};
  Json& details = json["seqpar"] = {{"panel", panel},
                                    {"series", series},
                                    {"kind", kKinds[static_cast<size_t>(row.kind)]},
                                    {"computed", row.outOfPlace.iterations == 0}};
  for (size_t i = 0; i < row.labels.size(); ++i) details["labels"][layout.labels[i].name] = row.labels[i];
  for (size_t i = 0; i < row.extras.size(); ++i) details["extras"][layout.extras[i].name] = row.extras[i];
  document_->json["results"].push_back(std::move(json));
}

void JsonFile::end(const Totals& totals, const Settings& settings) {
  Json& json = document_->json;
  json["out_of_bounds"] = {{"count", totals.wrong}, {"okay", truth(totals.wrong == 0)}};
  json["average_bus_bandwidth"] = {{"bandwidth", totals.bandwidth},
                                   {"okay", settings.minBandwidth < 0 ? "unchecked" : truth(totals.fastEnough)}};
  json["errors"] = Json::array();
  json["end_time"] = timestamp();
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const bool written = write(file_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (close(std::exchange(file_, -1)) != 0 || !written) failFile("write", path_);
}

}  // namespace seqpar::perf
