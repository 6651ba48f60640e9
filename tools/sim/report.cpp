#include "report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "library/recorder.h"

namespace seqpar::sim {
namespace {

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

std::string time(double us) {
  if (us >= 1e5) return format("%.0f ms", us / 1e3);
  if (us >= 1e4) return format("%.1f ms", us / 1e3);
  if (us >= 1e3) return format("%.2f ms", us / 1e3);
  return format("%.1f us", us);
}

std::string bytes(double count) {
  if (count >= 1e9) return format("%.2f GB", count / 1e9);
  if (count >= 1e6) return format("%.1f MB", count / 1e6);
  return format("%.1f KB", count / 1e3);
}

}  // namespace

double timeOf(const Outcome& outcome, bool forwardOnly) {
  return forwardOnly ? outcome.forwardUs : outcome.stepUs;
}

void writeTable(std::ostream& out, const std::vector<Row>& rows, bool forwardOnly) {
  out << format("%6s  %-20s %11s %11s %11s %11s %10s %10s %10s %7s %12s\n", "ranks", "algorithm", "forward", "backward",
                "exposed", "waiting", "in node", "network", "workspace", "ratio", "tokens/s/GPU");
  for (const auto& row : rows) {
    const auto& o = row.outcome;
    const std::string name = (row.chosen ? "* " : "  ") + row.name();
    if (!o.refusal.empty()) {
      out << format("%6d  %-20s ", row.ranks, name.c_str()) << "refused: " << o.refusal << "\n";
      continue;
    }
    double best = timeOf(o, forwardOnly);
    for (const auto& other : rows) {
      if (other.ranks == row.ranks && other.operation == row.operation && other.size == row.size &&
          other.outcome.refusal.empty() && other.outcome.algorithm != "local") {
        best = std::min(best, timeOf(other.outcome, forwardOnly));
      }
    }
    const double exposed = forwardOnly ? o.forwardExposedUs : o.stepExposedUs;
    const std::string speed = row.tokensPerSecond > 0 ? format("%.0f", row.tokensPerSecond) : "-";
    const std::string backward = o.stepUs > o.forwardUs ? time(o.stepUs - o.forwardUs) : "-";
    const std::string ratio = o.algorithm == "local" || best == 0 ? "-" : format("%.2f", timeOf(o, forwardOnly) / best);
    out << format("%6d  %-20s %11s %11s %11s %11s %10s %10s %10s %7s %12s\n", row.ranks, name.c_str(),
                  time(o.forwardUs).c_str(), backward.c_str(), time(exposed).c_str(), time(o.waitingUs).c_str(),
                  bytes(o.localBytes).c_str(), bytes(o.networkBytes).c_str(), bytes(o.workspaceBytes).c_str(),
                  ratio.c_str(), speed.c_str());
  }
  out << "* chosen by auto. exposed: time of the slowest rank without a kernel on the caller's stream; waiting: its "
         "mean.\n  in node, network: bytes that a rank sends. ratio: to the fastest algorithm of the group.\n";
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.outcome.algorithm == "local"; }))
    out << "  local: each rank's own tokens only, without exchanges.\n";
}

void writeGuesses(std::ostream& out, const std::vector<std::string>& guesses, bool all) {
  if (guesses.empty()) return;
  out << "guesses of the machine file:";
  std::map<std::string, int> counts;
  for (const auto& key : guesses) {
    if (all) out << " " << key;
    ++counts[key.substr(0, key.find('.'))];
  }
  for (const auto& [object, count] : counts) {
    if (!all) out << " " << object << " " << count << ",";
  }
  out << (all ? "\n" : " listed by --explain\n");
}

void writeCsv(std::ostream& out, const std::vector<Row>& rows) {
  out << "ranks,operation,size,algorithm,inner,auto,forward_us,step_us,forward_exposed_us,step_exposed_us,waiting_us,"
         "node_bytes,network_bytes,workspace_bytes,tokens_s_gpu\n";
  for (const auto& row : rows) {
    const auto& o = row.outcome;
    if (!o.refusal.empty()) continue;
    out << row.ranks << "," << row.operation << "," << row.size << "," << o.algorithm << "," << row.inner << ","
        << (row.chosen ? 1 : 0)
        << format(",%.3f,%.3f,%.3f,%.3f,%.3f,%.0f,%.0f,%.0f,%.1f\n", o.forwardUs, o.stepUs, o.forwardExposedUs,
                  o.stepExposedUs, o.waitingUs, o.localBytes, o.networkBytes, o.workspaceBytes, row.tokensPerSecond);
  }
}

void writeTrace(std::ostream& out, const std::vector<Timeline>& timelines) {
  const auto& labels = Recorder::labels();
  auto events = nlohmann::json::array();
  int processes = 0;
  const auto describe = [&](const char* what, int process, int thread, const std::string& name) {
    events.push_back({{"ph", "M"}, {"pid", process}, {"tid", thread}, {"name", what}, {"args", {{"name", name}}}});
  };
  for (const auto& timeline : timelines) {
    int ranks = 0;
    std::set<std::pair<int, int>> streams;
    for (const auto& span : timeline.spans) {
      ranks = std::max(ranks, span.rank + 1);
      streams.insert({span.rank, span.stream});
      events.push_back({{"ph", "X"},
                        {"pid", processes + span.rank},
                        {"tid", span.stream},
                        {"name", labels[span.label]},
                        {"ts", span.begin},
                        {"dur", span.end - span.begin}});
    }
    for (int rank = 0; rank < ranks; ++rank) {
      describe("process_name", processes + rank, 0, timeline.name + format(", rank %d", rank));
      events.push_back({{"ph", "M"},
                        {"pid", processes + rank},
                        {"tid", 0},
                        {"name", "process_sort_index"},
                        {"args", {{"sort_index", processes + rank}}}});
    }
    for (const auto& [rank, stream] : streams)
      describe("thread_name", processes + rank, stream, stream == 0 ? "caller's stream" : format("stream %d", stream));
    processes += ranks;
  }
  out << nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() << "\n";
}

void writeChoice(std::ostream& out, const std::string& choice, const std::string& explain, const std::vector<Row>& rows,
                 bool forwardOnly) {
  const auto json = nlohmann::json::parse(explain);
  std::vector<std::pair<double, std::string>> modeled;
  for (const auto& candidate : json.at("candidates")) {
    if (candidate.contains("cannot") || candidate.at("algorithm") == "local") continue;
    const double backward = forwardOnly ? 0 : candidate.at("backwardUs").get<double>();
    modeled.emplace_back(candidate.at("forwardUs").get<double>() + backward, candidate.at("algorithm"));
  }
  std::sort(modeled.begin(), modeled.end());
  out << "auto takes " << choice << "; the library's model:";
  for (size_t i = 0; i < modeled.size(); ++i) {
    if (i >= 4 && modeled[i].second != choice) continue;
    out << (i == 0 ? " " : ", ") << modeled[i].second << " " << time(modeled[i].first);
  }
  if (!modeled.empty() && modeled.front().second != choice)
    out << "; among nodes it takes the fewest bytes of those within 5 %";
  out << (json.at("layout").is_string() ? "; layout " + json.at("layout").get<std::string>() : "") << "\n";
  const Row *best = nullptr, *own = nullptr;
  for (const auto& row : rows) {
    if (!row.outcome.refusal.empty() || row.outcome.algorithm == "local") continue;
    if (row.outcome.algorithm == choice) own = &row;
    if (best == nullptr || timeOf(row.outcome, forwardOnly) < timeOf(best->outcome, forwardOnly)) best = &row;
  }
  if (own == nullptr || best == own) return;
  const double ratio = timeOf(own->outcome, forwardOnly) / timeOf(best->outcome, forwardOnly);
  if (ratio > 1.1)
    out << "in the simulation " << best->outcome.algorithm << " is " << format("%.2f", ratio) << " times as fast\n";
}

}  // namespace seqpar::sim
