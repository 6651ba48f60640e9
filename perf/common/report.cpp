#include "report.h"

#include <cmath>
#include <cstdio>

#include "memory_use.h"
#include "statistics.h"

namespace seqpar::perf {
namespace {

constexpr std::chrono::seconds kProgressAfter(10);
/// Required fraction of NCCL_TESTS_MIN_BW, as in nccl-tests.
constexpr double kEnough = 0.9;

std::string numberText(double value) {
  if (std::isnan(value)) return "-";
  char digits[32];
  const double size = std::fabs(value);
  const int places = size == 0 ? 2 : size < 0.1 ? 4 : size < 100 ? 2 : size < 10000 ? 1 : 0;
  std::snprintf(digits, sizeof digits, "%.*f", places, value);
  return digits;
}

std::string wrongText(const Timing& timing) {
  return timing.checked ? std::to_string(timing.wrong) : "N/A";
}

void printTiming(const Timing& timing, size_t bytes, bool perIteration) {
  const std::string speed = numberText(bandwidth(bytes, timing.us));
  std::printf(" %9s %7s %7s %6s", numberText(timing.us).c_str(), speed.c_str(), speed.c_str(),
              wrongText(timing).c_str());
  if (!perIteration) return;
  if (!timing.each) return static_cast<void>(std::printf(" %9s %9s %9s %7s", "-", "-", "-", "-"));
  const Statistics each(timing.each->counted);
  std::printf(" %9s %9s %9s %7s", numberText(each.min).c_str(), numberText(each.max).c_str(),
              numberText(each.p99).c_str(), numberText(each.variation()).c_str());
}

}  // namespace

Report::Report(std::string program, std::vector<std::string> arguments, Settings settings, Layout layout, bool quiet)
    : program_(std::move(program)),
      arguments_(std::move(arguments)),
      settings_(std::move(settings)),
      layout_(std::move(layout)),
      quiet_(quiet) {
  start_ = lastProgress_ = std::chrono::steady_clock::now();
  if (!quiet_ && !settings_.jsonPath.empty()) json_ = std::make_unique<JsonFile>(settings_.jsonPath);
}

void Report::header(Group& group) {
  const RunFacts facts = gatherFacts(program_, arguments_, settings_, group);
  if (quiet_) return;
  printFacts(facts);
  for (const std::string& text : settings_.notes) note(text);
  if (json_) {
    json_->begin(facts, settings_);
    note("Writing JSON output to " + json_->path());
  }
  printColumns();
}

void Report::printFacts(const RunFacts& facts) const {
  std::printf("# %s, seqpar version %d\n", program_.c_str(), facts.version);
  const std::string step = settings_.factor > 1 ? std::to_string(settings_.factor) + "(factor)"
                                                : std::to_string(settings_.stepBytes) + "(bytes)";
  std::printf(
      "# nRanks %zu minBytes %zu maxBytes %zu step: %s warmup iters: %d iters: %d agg iters: %d repeats: %d "
      "validation: %d graph: %d unalign: %zu\n",
      facts.ranks.size(), settings_.minBytes, settings_.maxBytes, step.c_str(), settings_.warmup, settings_.iterations,
      settings_.aggregate, settings_.repeats, settings_.check, settings_.graphLaunches, settings_.unalign);
  std::printf("# time: %s, of %s; median of the repeats; %s\n", facts.mode.c_str(), facts.average.c_str(),
              facts.how.c_str());
  if (facts.barrierUs > 0) {
    std::printf("# the barrier takes %.2f us, which are subtracted from the times\n", facts.barrierUs);
  }
  std::printf("#\n# Using ranks\n");
  for (size_t r = 0; r < facts.ranks.size(); ++r) {
    const RankFacts& rank = facts.ranks[r];
    std::printf("#  Rank %2zu Pid %6d on %s %s [%s]\n", r, rank.pid, rank.host.c_str(), rank.deviceName.c_str(),
                rank.transport.c_str());
  }
  if (facts.sharing > 1) {
    std::printf("# up to %d ranks share a GPU: fewer CTAs a rank, and no figures of links\n", facts.sharing);
  }
  std::printf("# measured at init: alpha %.3g us, bandwidth %.3g GB/s, overhead %.3g us a block, contention %.3g\n",
              facts.comm.alphaUs, facts.comm.bandwidth / 1e9, facts.comm.overheadUs, facts.comm.contention);
  if (facts.limits.bandwidth > 0) {
    std::printf("# measured here: one way of a flag %.3g us, stores to one neighbor %.4g GB/s\n", facts.limits.alphaUs,
                facts.limits.bandwidth / 1e9);
  }
}

void Report::printColumns() const {
  const bool more = settings_.perIteration;
  const int half = more ? 71 : 33;
  const char* const time = settings_.cpuTime ? "cputime" : "time";
  const auto line = [&](auto text, const char* size, const char* count, auto perHalf, const char* end) {
    std::string labels, extras;
    const auto add = [&](std::string& to, const Column& column) {
      to += " " + std::string(static_cast<size_t>(column.width), ' ');
      to.replace(to.size() - text(column).size(), text(column).size(), text(column));
    };
    for (const Column& column : layout_.labels) add(labels, column);
    for (const Column& column : layout_.extras) add(extras, column);
    std::printf("#%11s %11s%s", size, count, labels.c_str());
    perHalf("out-of-place");
    if (layout_.inPlace) perHalf("in-place");
    std::printf("%s%s\n", extras.c_str(), settings_.timestamps ? end : "");
  };
  std::printf("#\n");
  line([](const Column&) { return std::string(); }, "", "", [&](const char* name) { std::printf("%*s", half, name); },
       "");
  line([](const Column& column) { return column.name; }, "size", "count",
       [&](const char*) {
         std::printf(" %9s %7s %7s %6s", time, "algbw", "busbw", "#wrong");
         if (more) std::printf(" %9s %9s %9s %7s", "i_min", "i_max", "i_p99", "i_cv%");
       },
       "           timestamp");
  line([](const Column& column) { return column.unit; }, "(B)", "(elements)",
       [&](const char*) {
         std::printf(" %9s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
         if (more) std::printf(" %9s %9s %9s %7s", "(us)", "(us)", "(us)", "(%)");
       },
       "   %Y-%m-%d %H:%M:%S");
  std::fflush(stdout);
}

void Report::note(const std::string& text) {
  if (!quiet_) std::printf("# %s\n", text.c_str());
}

void Report::row(const Row& row) {
  ++rows_;
  totals_.wrong += row.outOfPlace.wrong + (row.inPlace ? row.inPlace->wrong : 0);
  if (row.kind != RowKind::Limit) {
    busSum_ += bandwidth(row.bytes, row.outOfPlace.us);
    ++times_;
  }
  if (row.inPlace) {
    busSum_ += bandwidth(row.bytes, row.inPlace->us);
    ++times_;
  }
  if (quiet_) return;
  std::printf("%12zu %11zu", row.bytes, row.count);
  for (size_t i = 0; i < row.labels.size(); ++i) std::printf(" %*s", layout_.labels[i].width, row.labels[i].c_str());
  printTiming(row.outOfPlace, row.bytes, settings_.perIteration);
  if (layout_.inPlace) printTiming(row.inPlace.value_or(Timing{}), row.bytes, settings_.perIteration);
  for (size_t i = 0; i < row.extras.size(); ++i) {
    std::printf(" %*s", layout_.extras[i].width, numberText(row.extras[i]).c_str());
  }
  if (settings_.timestamps) std::printf(" %s", timestamp().c_str());
  std::printf("\n");
  std::fflush(stdout);
  if (json_) json_->row(row, layout_, settings_);
}

void Report::footer(Group& group) {
  totals_.bandwidth = times_ == 0 ? 0 : busSum_ / static_cast<double>(times_);
  totals_.fastEnough = settings_.minBandwidth < 0 || totals_.bandwidth >= settings_.minBandwidth * kEnough;
  const std::string memory = settings_.memory ? memoryUse(group) : "";
  if (quiet_) return;
  const char* const verdict = rows_ == 0             ? "FAILED: nothing was measured"
                              : settings_.check == 0 ? "not checked"
                              : totals_.wrong == 0   ? "OK"
                                                     : "FAILED";
  const char* const speed = settings_.minBandwidth < 0 ? "" : totals_.fastEnough ? " OK" : " FAILED";
  std::printf("# Out of bounds values : %zu %s\n# Avg bus bandwidth    : %g%s\n", totals_.wrong, verdict,
              totals_.bandwidth, speed);
  if (!memory.empty()) std::printf("# Memory usage         : %s\n", memory.c_str());
  std::printf("#\n");
  std::fflush(stdout);
  if (json_) json_->end(totals_, settings_);
}

void Report::progress(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || now - lastProgress_ < kProgressAfter) return;
  lastProgress_ = now;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - start_).count();
  std::fprintf(stderr, "%s: %lld s, at %s\n", program_.c_str(), static_cast<long long>(seconds), what.c_str());
}

}  // namespace seqpar::perf
