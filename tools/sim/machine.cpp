#include "machine.h"

#include <algorithm>
#include <charconv>
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
  throw std::invalid_argument(what);
}

/// A larger number is a mistake in any unit of the file.
constexpr double kMost = 1e12;
constexpr double kMostRanks = 4096;  ///< of a node

std::string shown(const Json& value) {
  return value.dump();
}

/// Reads the members of an object and refuses unknown ones.
class Reader {
 public:
  Reader(const Json& object, std::string path, std::vector<std::string>& guesses)
      : object_(object), path_(std::move(path)), guesses_(guesses) {
    if (!object.is_object()) {
      wrong((path_.empty() ? "the text" : path_) + " is not an object, expected keys as in an installed machine file");
    }
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool has(const std::string& key) const { return object_.contains(key); }
  const Json& at(const std::string& key) {
    seen_.insert(key);
    if (!object_.contains(key)) wrong(name(key) + " is missing, expected as in an installed machine file");
    return object_[key];
  }
  std::string text(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_string()) wrong(name(key) + " is " + shown(value) + ", expected a string");
    return value.get<std::string>();
  }
  double number(const std::string& key, double otherwise) { return has(key) ? number(key) : otherwise; }
  double number(const std::string& key) {
    const Json& entry = sourced(key);
    if (!entry.contains("value")) wrong(name(key) + ".value is missing, expected a number");
    const Json& number = entry["value"];
    const double value = number.is_number() ? number.get<double>() : -1;
    if (!(value >= 0 && value <= kMost))
      wrong(name(key) + ".value is " + shown(number) + ", expected a number from 0 to 1e12");
    return value;
  }
  /// A number from `least` on.
  double atLeast(const std::string& key, double least, double most = kMost) {
    const double value = number(key);
    if (value < least || value > most)
      wrong(name(key) + ".value is " + shown(value) + ", expected from " + shown(least) + " to " + shown(most));
    return value;
  }
  double atLeast(const std::string& key, double least, double most, double otherwise) {
    return has(key) ? atLeast(key, least, most) : otherwise;
  }
  /// A divisor of times.
  double rate(const std::string& key) { return atLeast(key, kLeastRate); }
  int count(const std::string& key) {
    const double value = atLeast(key, 1, kMostRanks);
    if (value != std::floor(value)) wrong(name(key) + ".value is " + shown(value) + ", expected a whole number");
    return static_cast<int>(value);
  }
  Curve curve(const std::string& key) {
    const Json& entry = sourced(key);
    Curve curve;
    if (!entry.contains("points") || !entry["points"].is_array() || entry["points"].empty()) {
      wrong(name(key) + ".points is not an array, expected one of [x, y]");
    }
    for (const Json& point : entry["points"]) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
        wrong(name(key) + ".points has the entry " + shown(point) + ", expected [x, y]");
      }
      const auto x = point[0].get<double>(), y = point[1].get<double>();
      if (!(x >= kLeastRate && x <= kMost && y >= kLeastRate && y <= kMost))
        wrong(name(key) + ".points has the entry " + shown(point) + ", expected numbers from 1e-9 to 1e12");
      if (!curve.points.empty() && x <= curve.points.back().first)
        wrong(name(key) + ".points has the entry " + shown(point) + ", expected ascending x");
      curve.points.emplace_back(x, y);
    }
    return curve;
  }
  /// Refuses members that no call has read.
  void end() const {
    for (const auto& [key, value] : object_.items()) {
      if (!seen_.contains(key)) wrong(name(key) + " is unknown, expected only keys of an installed machine file");
    }
  }
  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  static constexpr double kLeastRate = 1e-9;
  const Json& sourced(const std::string& key) {
    const Json& entry = at(key);
    if (!entry.is_object()) wrong(name(key) + " is " + shown(entry) + ", expected an object with value and source");
    for (const auto& [member, value] : entry.items()) {
      if (member != "value" && member != "points" && member != "source")
        wrong(name(key) + "." + member + " is unknown, expected value or points, and source");
    }
    if (!entry.contains("source") || !entry["source"].is_string())
      wrong(name(key) + ".source is missing, expected a text");
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

void readGpus(Reader& top, Machine& m) {
  object(top, "node", m.guesses, [&](Reader& r) { m.gpus = r.count("gpus"); });
  object(top, "gpu", m.guesses, [&](Reader& r) {
    m.gpu = {r.atLeast("sms", 1), r.rate("hbm_gbs"),     r.number("launch_us"),
             r.number("api_us"),  r.rate("gemm_tflops"), r.count("arch")};
  });
  object(top, "local", m.guesses, [&](Reader& r) {
    m.local = {r.atLeast("direct", 0, 1) != 0,
               r.number("alpha_us"),
               r.rate("gbs"),
               r.rate("port_gbs"),
               r.rate("copy_gbs"),
               r.number("copy_start_us"),
               r.number("call_us"),
               r.number("exchange_us")};
  });
  object(top, "nccl", m.guesses, [&](Reader& r) {
    m.nccl = {r.number("start_us"),        r.number("hop_us"),        r.rate("gbs"),        r.number("ctas"),
              r.number("gather_start_us"), r.number("gather_hop_us"), r.rate("gather_gbs"), {}};
    if (r.has("flow_gbs")) m.nccl.flowGbs = r.curve("flow_gbs");
  });
  object(top, "scan", m.guesses, [&](Reader& r) {
    m.scan = {r.number("call_us"), r.number("rows_us"),     r.number("hop_us"),
              r.number("peer_us"), r.rate("stream_tbs"),    r.rate("fold_tbs"),
              r.rate("chunk_kib"), r.rate("matrix_tflops"), {}};
    object(r, "programs", m.guesses, [&](Reader& programs) {
      for (const char* const name : {"oneshot", "transposed", "doubling", "lasp1", "lasp2"}) {
        object(programs, name, m.guesses, [&](Reader& program) {
          m.scan.programs[name] = {program.number("start_us"), program.number("rows_us"), program.rate("rate_tbs")};
        });
      }
    });
  });
}

void readHost(Reader& top, Machine& m) {
  object(top, "node", m.guesses, [&](Reader& r) { m.host.processors = r.atLeast("processors", 1, kMostRanks); });
  object(top, "host", m.guesses, [&](Reader& r) {
    auto& h = m.host;
    h.callUs = r.number("call_us");
    h.threadUs = r.number("thread_us");
    h.alphaUs = r.number("alpha_us");
    h.switchUs = r.number("switch_us");
    h.sendsMessages = r.atLeast("sends_messages", 0, 1) != 0;
    h.maps = r.atLeast("maps", 0, 1, 1) != 0;
    h.messageUs = r.number("message_us");
    h.linkGbs = r.rate("link_gbs");
    h.memoryGbs = r.rate("memory_gbs");
    h.copyGbs = r.curve("copy_gbs");
    h.readGbs = r.curve("read_gbs");
    h.ownGbs = r.curve("own_gbs");
    h.scanGbs = r.curve("scan_gbs");
    m.scan.matrixTflops = r.rate("matrix_tflops");
    m.gpu.gemmTflops = r.rate("gemm_tflops");
  });
  m.gpus = static_cast<int>(m.host.processors);
  m.gpu.sms = 1;
  m.gpu.hbmGbs = m.host.memoryGbs;
}

/// Applies a change of --what-if.
void change(Json& json, Machine& machine, const std::string& text) {
  static const std::regex pattern(R"(\s*([A-Za-z0-9_. \[\]]*[A-Za-z0-9_\]])\s*(\*?=)\s*(\S+)\s*)");
  static const std::regex ofRank(R"(rank\[(\d{1,9})\]\.(rate|local|net))");
  static const std::regex failure(R"(\s*rank\[(\d{1,9})\]\.net\s*=\s*down\s*)");
  const auto refuse = [&](const std::string& why) { wrong("--what-if '" + text + "': " + why); };
  std::smatch parts, rank;
  if (std::regex_match(text, rank, failure)) {
    machine.failedAdapters.insert(std::stoi(rank[1]));
    return;
  }
  if (!std::regex_match(text, parts, pattern)) {
    refuse("expected KEY*=FACTOR, KEY=VALUE, rank[R].rate*=FACTOR (.local, .net) or rank[R].net=down");
  }
  const std::string key = parts[1], digits = parts[3];
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || !(number >= 0 && number <= kMost)) {
    refuse(digits + " is not a number from 0 to 1e12");
  }
  if (std::regex_match(key, rank, ofRank)) {
    if (parts[2] != "*=" || number < 1e-9) refuse("expected a factor (*=) from 1e-9 on for a rank");
    machine.rankFactors[std::stoi(rank[1])][rank[2]] = number;
    return;
  }
  for (const auto& [object, name] : {std::pair("net", "adapters"), {"net", "flow_gbs"}, {"host", "maps"}}) {
    const bool present = json.contains(object) && json[object].is_object();
    if (present && key == std::string(object) + "." + name && parts[2] == "=") {
      json[object][name] = {{"value", number}, {"source", "--what-if"}};
      return;
    }
  }
  Json* at = &json;
  std::stringstream names(key);
  for (std::string name; std::getline(names, name, '.');) {
    if (!at->is_object() || !at->contains(name))
      refuse(key +
             " is an unknown key, expected one of the machine file, such as net.gbs, or rank[R].rate, .local, .net");
    at = &(*at)[name];
  }
  if (!at->is_object() || !at->contains("value") || !(*at)["value"].is_number()) {
    refuse(key + " does not name a number, expected one such as net.gbs");
  }
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
    m.net = {r.number("alpha_us"),
             r.number("overhead_us"),
             r.rate("gbs"),
             r.atLeast("oversubscription", 1),
             r.atLeast("leaf_nodes", 1),
             0,
             r.atLeast("flow_gbs", 1e-9, kMost, 0)};
    if (r.has("adapters")) m.net.adapters = r.count("adapters");
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
    m.statesShare = r.atLeast("states_share", 0, 1);
    object(r, "families", m.guesses, [&](Reader& families) {
      for (const auto& [name, value] : r.at("families").items()) {
        object(families, name, m.guesses, [&, &key = name](Reader& f) {
          m.linear[key] = {f.curve("forward"), f.curve("backward"), f.atLeast("split_forward", 1, kMost, 1),
                           f.atLeast("split_backward", 1, kMost, 1)};
        });
      }
    });
  });
  top.end();
  return m;
}

int Machine::adapterOf(int rank) const {
  const int node = rank / gpus * gpus, sharing = ranksOfAdapter(), count = (gpus + sharing - 1) / sharing;
  std::set<int> failed;
  for (const int each : failedAdapters) {
    if (each / gpus * gpus == node) failed.insert((each - node) / sharing);
  }
  for (int tried = 0; tried < count; ++tried) {
    const int adapter = ((rank - node) / sharing + tried) % count;
    if (!failed.contains(adapter)) return node + adapter * sharing;
  }
  return -1;
}

void checkRanks(const Machine& machine, int ranks) {
  const auto check = [&](int rank) {
    if (rank < ranks) return;
    wrong("--what-if rank[" + std::to_string(rank) + "]: there are " + std::to_string(ranks) +
          " ranks, expected 0 to " + std::to_string(ranks - 1));
  };
  for (const auto& [rank, factors] : machine.rankFactors) check(rank);
  for (const int rank : machine.failedAdapters) {
    check(rank);
    if (machine.adapterOf(rank) < 0) {
      wrong("--what-if rank[" + std::to_string(rank) +
            "].net=down: no adapter of its node is left, expected one that carries its bytes");
    }
  }
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
