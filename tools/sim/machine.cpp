#include "machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

namespace seqpar::sim {
namespace {

using Json = nlohmann::json;

[[noreturn]] void wrong(const std::string& what) {
  throw std::invalid_argument("machine file: " + what);
}

/// Reads the members of an object and refuses unknown ones.
class Reader {
 public:
  Reader(const Json& object, std::string path, std::vector<std::string>& guesses)
      : object_(object), path_(std::move(path)), guesses_(guesses) {
    if (!object.is_object()) wrong(path_ + " is not an object");
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool has(const std::string& key) const { return object_.contains(key); }
  const Json& at(const std::string& key) {
    seen_.insert(key);
    if (!object_.contains(key)) wrong(name(key) + " is missing");
    return object_[key];
  }
  std::string text(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_string()) wrong(name(key) + " is not a string");
    return value.get<std::string>();
  }
  double number(const std::string& key, double otherwise) { return has(key) ? number(key) : otherwise; }
  double number(const std::string& key) {
    const Json& entry = sourced(key);
    if (!entry.contains("value") || !entry["value"].is_number()) wrong(name(key) + ".value is not a number");
    const double value = entry["value"].get<double>();
    if (!std::isfinite(value) || value < 0) wrong(name(key) + ".value is negative or not finite");
    return value;
  }
  Curve curve(const std::string& key) {
    const Json& entry = sourced(key);
    Curve curve;
    if (!entry.contains("points") || !entry["points"].is_array() || entry["points"].empty()) {
      wrong(name(key) + ".points is not an array of [x, y]");
    }
    for (const Json& point : entry["points"]) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
        wrong(name(key) + ".points has an entry other than [x, y]");
      }
      curve.points.emplace_back(point[0].get<double>(), point[1].get<double>());
      if (curve.points.back().first <= 0 || curve.points.back().second <= 0)
        wrong(name(key) + ": a point is not positive");
    }
    if (!std::is_sorted(curve.points.begin(), curve.points.end())) wrong(name(key) + ".points are not ascending");
    return curve;
  }
  /// Refuses members that no call has read.
  void end() const {
    for (const auto& [key, value] : object_.items()) {
      if (!seen_.contains(key)) wrong(name(key) + " is unknown");
    }
  }
  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  const Json& sourced(const std::string& key) {
    const Json& entry = at(key);
    if (!entry.is_object()) wrong(name(key) + " is not an object with value and source");
    for (const auto& [member, value] : entry.items()) {
      if (member != "value" && member != "points" && member != "source")
        wrong(name(key) + "." + member + " is unknown");
    }
    if (!entry.contains("source") || !entry["source"].is_string()) wrong(name(key) + ".source is missing");
    if (entry["source"].get<std::string>().starts_with("guess")) guesses_.push_back(name(key));
    return entry;
  }

  const Json& object_;
  std::string path_;
  std::vector<std::string>& guesses_;
  std::set<std::string> seen_;
};

template <typename Body>
void object(Reader& from, const std::string& key, std::vector<std::string>& guesses, const Body& body) {
  Reader part(from.at(key), from.name(key), guesses);
  body(part);
  part.end();
}

void requireRates(std::initializer_list<double> rates) {
  for (const double rate : rates) {
    if (!(rate > 0)) wrong("a rate is 0");
  }
}

void readGpus(Reader& top, Machine& m) {
  object(top, "node", m.guesses, [&](Reader& r) { m.gpus = static_cast<int>(r.number("gpus")); });
  object(top, "gpu", m.guesses, [&](Reader& r) {
    m.gpu = {r.number("sms"), r.number("hbm_gbs"), r.number("launch_us"), r.number("api_us"), r.number("gemm_tflops")};
  });
  object(top, "local", m.guesses, [&](Reader& r) {
    m.local = {r.number("direct") != 0, r.number("alpha_us"),      r.number("gbs"),     r.number("port_gbs"),
               r.number("copy_gbs"),    r.number("copy_start_us"), r.number("call_us"), r.number("exchange_us")};
  });
  object(top, "nccl", m.guesses, [&](Reader& r) {
    m.nccl = {r.number("start_us"),        r.number("hop_us"),        r.number("gbs"),       r.number("ctas"),
              r.number("gather_start_us"), r.number("gather_hop_us"), r.number("gather_gbs")};
  });
  object(top, "scan", m.guesses, [&](Reader& r) {
    m.scan = {r.number("call_us"),   r.number("rows_us"),       r.number("hop_us"),
              r.number("peer_us"),   r.number("stream_tbs"),    r.number("fold_tbs"),
              r.number("chunk_kib"), r.number("matrix_tflops"), {}};
    object(r, "programs", m.guesses, [&](Reader& programs) {
      for (const char* const name : {"oneshot", "transposed", "doubling", "lasp1", "lasp2"}) {
        object(programs, name, m.guesses, [&](Reader& program) {
          m.scan.programs[name] = {program.number("start_us"), program.number("rows_us"), program.number("rate_tbs")};
        });
      }
    });
  });
  if (m.gpus < 1 || m.gpu.sms < 1) wrong("node.gpus or gpu.sms is less than 1");
  requireRates({m.gpu.hbmGbs, m.gpu.gemmTflops, m.local.gbs, m.local.portGbs, m.local.copyGbs, m.nccl.gbs,
                m.nccl.gatherGbs, m.scan.streamTbs, m.scan.foldTbs, m.scan.chunkKib, m.scan.matrixTflops});
  for (const auto& [name, program] : m.scan.programs) requireRates({program.rateTbs});
}

void readHost(Reader& top, Machine& m) {
  object(top, "node", m.guesses, [&](Reader& r) { m.host.processors = r.number("processors"); });
  object(top, "host", m.guesses, [&](Reader& r) {
    auto& h = m.host;
    h.callUs = r.number("call_us");
    h.threadUs = r.number("thread_us");
    h.alphaUs = r.number("alpha_us");
    h.switchUs = r.number("switch_us");
    h.sendsMessages = r.number("sends_messages") != 0;
    h.messageUs = r.number("message_us");
    h.linkGbs = r.number("link_gbs");
    h.memoryGbs = r.number("memory_gbs");
    h.copyGbs = r.curve("copy_gbs");
    h.readGbs = r.curve("read_gbs");
    h.ownGbs = r.curve("own_gbs");
    h.scanGbs = r.curve("scan_gbs");
    m.scan.matrixTflops = r.number("matrix_tflops");
    m.gpu.gemmTflops = r.number("gemm_tflops");
  });
  m.gpus = static_cast<int>(m.host.processors);
  m.gpu.sms = 1;
  m.gpu.hbmGbs = m.host.memoryGbs;
  if (m.gpus < 1) wrong("node.processors is less than 1");
  requireRates({m.host.linkGbs, m.host.memoryGbs, m.scan.matrixTflops, m.gpu.gemmTflops});
}

void change(Json& json, Machine& machine, const std::string& text) {
  static const std::regex pattern(R"(\s*([A-Za-z0-9_.\[\]]+)\s*(\*?=)\s*([-+0-9.eE]+)\s*)");
  static const std::regex ofRank(R"(rank\[(\d{1,9})\]\.(rate|local|net))");
  static const std::regex failure(R"(\s*rank\[(\d{1,9})\]\.net\s*=\s*down\s*)");
  std::smatch parts, rank;
  if (std::regex_match(text, rank, failure)) {
    machine.failedAdapters.insert(std::stoi(rank[1]));
    return;
  }
  if (!std::regex_match(text, parts, pattern)) {
    wrong("the change '" + text + "' is none of KEY*=FACTOR, KEY=VALUE, rank[R].net=down");
  }
  const std::string key = parts[1];
  const double number = std::stod(parts[3]);
  if (!(number >= 0)) wrong("the change '" + text + "' has a negative number");
  if (std::regex_match(key, rank, ofRank)) {
    if (parts[2] != "*=" || number == 0) wrong("the change '" + text + "' of a rank is not a positive factor (*=)");
    machine.rankFactors[std::stoi(rank[1])][rank[2]] = number;
    return;
  }
  Json* at = &json;
  std::stringstream names(key);
  for (std::string name; std::getline(names, name, '.');) {
    if (!at->is_object() || !at->contains(name)) wrong("the change '" + text + "' names an unknown key");
    at = &(*at)[name];
  }
  if (!at->is_object() || !at->contains("value")) wrong("the change '" + text + "' does not name a number");
  Json& value = (*at)["value"];
  value = parts[2] == "*=" ? value.get<double>() * number : number;
}

}  // namespace

double Curve::at(double x) const {
  if (x <= points.front().first) return points.front().second;
  if (x >= points.back().first) return points.back().second;
  size_t i = 1;
  while (points[i].first < x) ++i;
  const auto& [x0, y0] = points[i - 1];
  const auto& [x1, y1] = points[i];
  const double t = std::log(x / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, t);
}

double Curve::proportional(double x) const {
  const double nearest = std::clamp(x, points.front().first, points.back().first);
  return at(x) * x / nearest;
}

double Machine::factor(int rank, const char* what) const {
  const auto found = rankFactors.find(rank);
  if (found == rankFactors.end()) return 1;
  const auto value = found->second.find(what);
  return value == found->second.end() ? 1 : value->second;
}

int Machine::adapters() const {
  if (net.adapters > 0) return std::min(gpus, static_cast<int>(net.adapters));
  return onHosts() ? 1 : gpus;
}

double Machine::inCaches(double bytes) const {
  return std::max(1.0, bytes * std::max(1.0, gpus / host.processors));
}

double Machine::threads() const {
  return std::max(1.0, std::floor(host.processors / gpus));
}

Machine readMachine(const std::string& text, const std::vector<std::string>& changes) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    wrong(error.what());
  }
  Machine m;
  for (const auto& one : changes) change(json, m, one);
  Reader top(json, "", m.guesses);
  m.name = top.text("name");
  m.about = top.text("about");
  const bool onHosts = top.has("host");
  if (onHosts) {
    readHost(top, m);
  } else {
    readGpus(top, m);
  }
  object(top, "net", m.guesses, [&](Reader& r) {
    m.net = {r.number("alpha_us"),   r.number("overhead_us"), r.number("gbs"),        r.number("oversubscription"),
             r.number("leaf_nodes"), r.number("adapters", 0), r.number("flow_gbs", 0)};
  });
  object(top, "softmax", m.guesses, [&](Reader& r) {
    for (const std::string type : {"", "fp32 ", "bf16 "}) {
      if (type.empty() == onHosts) continue;
      for (const char* const name : {"full forward", "full backward", "causal forward", "causal backward"}) {
        m.softmax[type + name] = r.curve(type + name);
      }
    }
  });
  object(top, "linear", m.guesses, [&](Reader& r) {
    m.statesShare = r.number("states_share");
    object(r, "families", m.guesses, [&](Reader& families) {
      for (const auto& [name, value] : r.at("families").items()) {
        object(families, name, m.guesses, [&, &key = name](Reader& f) {
          m.linear[key] = {f.curve("forward"), f.curve("backward"), f.number("split_forward", 1),
                           f.number("split_backward", 1)};
        });
      }
    });
  });
  top.end();
  if (m.net.oversubscription < 1 || m.net.leafNodes < 1) wrong("net.oversubscription or net.leaf_nodes is less than 1");
  if (!m.failedAdapters.empty() && m.gpus < 2) wrong("a node of one GPU has no adapter that replaces a failed one");
  if (!(m.net.gbs > 0)) wrong("a rate is 0");
  if (m.net.adapters != std::floor(m.net.adapters)) wrong("net.adapters is no whole number");
  return m;
}

std::string machineText(const std::string& nameOrPath) {
  namespace fs = std::filesystem;
  std::vector<fs::path> places{nameOrPath};
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  places.push_back(self / ".." / "share" / "seqpar" / "machines" / (nameOrPath + ".json"));
  places.push_back(fs::path(SEQPAR_MACHINES) / (nameOrPath + ".json"));
  for (const auto& place : places) {
    std::ifstream file(place);
    if (!file || fs::is_directory(place, ignored)) continue;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  throw std::invalid_argument("--machine " + nameOrPath +
                              " is neither a file nor an installed machine (h200x8, h100x8, "
                              "h800x8, a100x8, h200x4_sockets, xeon_host4)");
}

}  // namespace seqpar::sim
