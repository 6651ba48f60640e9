#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "seqpar/seqpar.h"

namespace seqpar::perf {
namespace {

constexpr std::chrono::seconds kProgressAfter(10);

std::string numberText(double value) {
  if (std::isnan(value)) return "-";
  char digits[32];
  const double size = std::fabs(value);
  std::snprintf(digits, sizeof digits, "%.*f", size < 100 ? 2 : size < 10000 ? 1 : 0, value);
  return digits;
}

/// Bytes over microseconds in GB/s.
double bandwidth(size_t bytes, double us) {
  return static_cast<double>(bytes) / us / 1e3;
}

std::string wrongText(const Timing& timing) {
  return timing.checked ? std::to_string(timing.wrong) : "N/A";
}

void printTiming(const Timing& timing, size_t bytes, bool perIteration) {
  const std::string speed = numberText(bandwidth(bytes, timing.us));
  std::printf(" %9s %7s %7s %6s", numberText(timing.us).c_str(), speed.c_str(), speed.c_str(),
              wrongText(timing).c_str());
  if (!perIteration) return;
  std::printf(" %9s %9s %9s", numberText(timing.minUs).c_str(), numberText(timing.maxUs).c_str(),
              numberText(timing.p99Us).c_str());
}

void writeTiming(Json& json, const Timing& timing, size_t bytes, bool perIteration) {
  json.beginObject();
  json.key("time").number(timing.us);
  json.key("alg_bw").number(bandwidth(bytes, timing.us));
  json.key("bus_bw").number(bandwidth(bytes, timing.us));
  json.key("nwrong").number(timing.checked ? static_cast<double>(timing.wrong) : Timing::kNone);
  json.key("iterations").number(timing.iterations);
  if (perIteration) {
    json.key("i_min").number(timing.minUs);
    json.key("i_max").number(timing.maxUs);
    json.key("i_p99").number(timing.p99Us);
  }
  json.endObject();
}

void writeNew(const std::string& option, const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) throw std::runtime_error("option " + option + ": cannot create '" + path + "'");
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (close(file) != 0 || !written) throw std::runtime_error("option " + option + ": cannot write '" + path + "'");
}

/// The entry with this name, made if there is none.
template <typename Entry>
Entry& named(std::vector<Entry>& entries, std::string Entry::*name, const std::string& wanted) {
  for (Entry& entry : entries) {
    if (entry.*name == wanted) return entry;
  }
  Entry& made = entries.emplace_back();
  made.*name = wanted;
  return made;
}

}  // namespace

Report::Report(std::string program, std::vector<std::string> arguments, Settings settings, Layout layout, bool quiet)
    : program_(std::move(program)), settings_(std::move(settings)), layout_(std::move(layout)), quiet_(quiet) {
  start_ = lastProgress_ = std::chrono::steady_clock::now();
  json_.beginObject();
  json_.key("program").text(program_);
  json_.key("args").beginArray();
  for (const std::string& argument : arguments) json_.text(argument);
  json_.endArray();
}

void Report::header(Group& group) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const std::vector<std::string> hosts = group.gatherText(host);
  const double pid = getpid();
  const std::vector<double> pids = group.gather(std::span(&pid, 1));
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(group.comm(), &info), "seqparCommQuery", group.comm());
  const std::vector<std::string> transports = group.gatherText(info.transport);
  const std::vector<std::string> devices =
      group.gatherText(group.gpu() == nullptr ? "device host" : group.gpu()->name());
  const double between = perf::barrierUs(group, settings_);
  const LinkLimits limits = group.gpu() == nullptr ? LinkLimits{} : group.gpu()->limits();
  if (quiet_) return;

  int version = 0;
  require(seqparGetVersion(&version), "seqparGetVersion");
  std::printf("# %s, seqpar version %d\n", program_.c_str(), version);
  const std::string step = settings_.factor > 1 ? std::to_string(settings_.factor) + "(factor)"
                                                : std::to_string(settings_.stepBytes) + "(bytes)";
  std::printf("# nRanks %d minBytes %zu maxBytes %zu step: %s warmup iters: %d iters: %d repeats: %d check: %d\n",
              group.size(), settings_.minBytes, settings_.maxBytes, step.c_str(), settings_.warmup,
              settings_.iterations, settings_.repeats, settings_.check);
  constexpr const char* kAverages[] = {"rank 0", "the mean of the ranks", "the fastest rank", "the slowest rank"};
  const char* const average = kAverages[static_cast<int>(settings_.average)];
  const char* const how = settings_.blocking ? "blocking calls"
                          : settings_.graph  ? "a CUDA graph of each loop"
                                             : "through a stream";
  const char* const mode = settings_.barrier
                               ? "one iteration after a barrier (isolated latency)"
                               : "mean over a loop without barriers (iterations may overlap between ranks)";
  std::printf("# time: %s, of %s; median of the repeats; %s\n", mode, average, how);
  if (between > 0) std::printf("# the barrier takes %.2f us, which are subtracted from the times\n", between);
  std::printf("#\n# Using ranks\n");
  for (size_t r = 0; r < hosts.size(); ++r) {
    std::printf("#  Rank %2zu Pid %6.0f on %s %s [%s]\n", r, pids[r], hosts[r].c_str(), devices[r].c_str(),
                transports[r].c_str());
  }
  if (group.gpu() != nullptr && group.gpu()->sharing() > 1) {
    std::printf("# up to %d ranks share a GPU: fewer CTAs a rank, and no figures of links\n", group.gpu()->sharing());
  }
  std::printf("# measured at init: alpha %.3g us, bandwidth %.3g GB/s, overhead %.3g us a block, contention %.3g\n",
              info.alphaUs, info.bandwidth / 1e9, info.overheadUs, info.contention);
  if (limits.bandwidth > 0) {
    std::printf("# measured here: one way of a flag %.3g us, stores to one neighbour %.4g GB/s\n", limits.alphaUs,
                limits.bandwidth / 1e9);
  }
  subtitle_ = std::to_string(group.size()) + " ranks, " + devices[0] + "; " + mode + "; " + how;

  json_.key("seqpar_version").number(version);
  json_.key("config").beginObject();
  json_.key("nranks").number(group.size());
  json_.key("iterations").number(settings_.iterations);
  json_.key("warmup").number(settings_.warmup);
  json_.key("repeats").number(settings_.repeats);
  json_.key("barrier").boolean(settings_.barrier);
  json_.key("blocking").boolean(settings_.blocking);
  json_.key("average").text(average);
  json_.key("gpu").boolean(settings_.gpu);
  json_.key("graph").boolean(settings_.graph);
  json_.key("barrier_us").number(between);
  json_.endObject();
  json_.key("ranks").beginArray();
  for (size_t r = 0; r < hosts.size(); ++r) {
    json_.beginObject().key("rank").number(static_cast<double>(r)).key("pid").number(pids[r]);
    json_.key("host").text(hosts[r]).key("device").text(devices[r]).key("transport").text(transports[r]).endObject();
  }
  json_.endArray();
  json_.key("communicator").beginObject().key("alpha_us").number(info.alphaUs);
  json_.key("bandwidth_bytes_per_s").number(info.bandwidth).key("overhead_us").number(info.overheadUs);
  json_.key("contention").number(info.contention).key("reason").text(info.reason).endObject();
  if (limits.bandwidth > 0) {
    json_.key("limits").beginObject().key("alpha_us").number(limits.alphaUs);
    json_.key("bandwidth_bytes_per_s").number(limits.bandwidth).endObject();
  }
  json_.key("results").beginArray();
  printColumns();
}

void Report::printColumns() const {
  const int half = settings_.perIteration ? 63 : 33;
  const auto line = [&](auto text, const char* size, const char* count, auto perHalf) {
    std::string labels, extras;
    for (const Column& column : layout_.labels) {
      labels += " " + std::string(static_cast<size_t>(column.width), ' ');
      labels.replace(labels.size() - text(column).size(), text(column).size(), text(column));
    }
    for (const Column& column : layout_.extras) {
      extras += " " + std::string(static_cast<size_t>(column.width), ' ');
      extras.replace(extras.size() - text(column).size(), text(column).size(), text(column));
    }
    std::printf("#%11s %11s%s", size, count, labels.c_str());
    perHalf("out-of-place");
    if (layout_.inPlace) perHalf("in-place");
    std::printf("%s\n", extras.c_str());
  };
  const bool more = settings_.perIteration;
  std::printf("#\n");
  line([](const Column&) { return std::string(); }, "", "", [&](const char* name) { std::printf("%*s", half, name); });
  line([](const Column& column) { return column.name; }, "size", "count",
       [&](const char*) {
         std::printf(" %9s %7s %7s %6s", "time", "algbw", "busbw", "#wrong");
         if (more) std::printf(" %9s %9s %9s", "i_min", "i_max", "i_p99");
       });
  line([](const Column& column) { return column.unit; }, "(B)", "(elements)",
       [&](const char*) {
         std::printf(" %9s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
         if (more) std::printf(" %9s %9s %9s", "(us)", "(us)", "(us)");
       });
  std::fflush(stdout);
}

void Report::note(const std::string& text) {
  if (!quiet_) std::printf("# %s\n", text.c_str());
}

void Report::row(const Row& row) {
  wrong_ += row.outOfPlace.wrong + (row.inPlace ? row.inPlace->wrong : 0);
  if (row.kind != RowKind::Limit) {
    busSum_ += bandwidth(row.bytes, row.outOfPlace.us);
    ++times_;
  }
  if (row.inPlace) {
    busSum_ += bandwidth(row.bytes, row.inPlace->us);
    ++times_;
  }
  if (quiet_) return;
  addPoint(row);

  std::printf("%12zu %11zu", row.bytes, row.count);
  for (size_t i = 0; i < row.labels.size(); ++i) std::printf(" %*s", layout_.labels[i].width, row.labels[i].c_str());
  printTiming(row.outOfPlace, row.bytes, settings_.perIteration);
  if (layout_.inPlace) printTiming(row.inPlace.value_or(Timing{}), row.bytes, settings_.perIteration);
  for (size_t i = 0; i < row.extras.size(); ++i) {
    std::printf(" %*s", layout_.extras[i].width, numberText(row.extras[i]).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);

  json_.beginObject().key("size").number(static_cast<double>(row.bytes));
  json_.key("count").number(static_cast<double>(row.count));
  for (size_t i = 0; i < row.labels.size(); ++i) json_.key(layout_.labels[i].name).text(row.labels[i]);
  json_.key("computed").boolean(row.outOfPlace.iterations == 0);
  json_.key("out_of_place");
  writeTiming(json_, row.outOfPlace, row.bytes, settings_.perIteration);
  if (row.inPlace) {
    json_.key("in_place");
    writeTiming(json_, *row.inPlace, row.bytes, settings_.perIteration);
  }
  for (size_t i = 0; i < row.extras.size(); ++i) json_.key(layout_.extras[i].name).number(row.extras[i]);
  json_.endObject();
}

void Report::addPoint(const Row& row) {
  std::string panel, series;
  for (size_t i = 0; i < row.labels.size(); ++i) {
    std::string& text = layout_.labels[i].inPlot == InPlot::Panel ? panel : series;
    if (layout_.labels[i].inPlot != InPlot::Nothing) text += (text.empty() ? "" : " ") + row.labels[i];
  }
  Series& line =
      named(named(panels_, &Panel::title, panel).series, &Series::name, row.series.empty() ? series : row.series);
  line.kind = row.kind;
  line.points.emplace_back(static_cast<double>(row.bytes), row.outOfPlace.us);
}

void Report::footer() {
  if (quiet_) return;
  const double average = times_ == 0 ? 0 : busSum_ / static_cast<double>(times_);
  const char* const verdict = !settings_.check ? "not checked" : wrong_ == 0 ? "OK" : "FAILED";
  std::printf("# Out of bounds values : %zu %s\n# Avg bus bandwidth    : %g\n#\n", wrong_, verdict, average);
  std::fflush(stdout);
  json_.endArray();
  json_.key("out_of_bounds").number(static_cast<double>(wrong_));
  json_.key("checked").boolean(settings_.check);
  json_.key("average_bus_bandwidth").number(average);
  json_.endObject();
  if (!settings_.jsonPath.empty()) writeNew("-J", settings_.jsonPath, json_.str() + "\n");
  if (!settings_.plotPath.empty()) writeNew("--plot", settings_.plotPath, drawPlot(program_, subtitle_, panels_));
}

void Report::progress(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || now - lastProgress_ < kProgressAfter) return;
  lastProgress_ = now;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - start_).count();
  std::fprintf(stderr, "%s: %lld s, at %s\n", program_.c_str(), static_cast<long long>(seconds), what.c_str());
}

}  // namespace seqpar::perf
