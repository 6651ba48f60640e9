#include "plan/tuning_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/env.h"
#include "base/log.h"

namespace seqpar {
namespace {

constexpr const char* kMagic = "seqpar tuning cache ";
constexpr const char* kVersion = "1";
constexpr size_t kMostLines = 256;            // placements change, for example with container names
constexpr off_t kMostBytes = off_t{1} << 20;  // more than kMostLines lines that this file writes
constexpr mode_t kShared = 0644;

uint64_t hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

std::string hexadecimal(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string number(double value) {
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// The members of a model in the file's order.
template <typename Model>
auto numbersOf(Model& model) {
  return std::array{&model.node.alpha,    &model.node.secondsPerByte,    &model.node.overhead,
                    &model.network.alpha, &model.network.secondsPerByte, &model.network.overhead,
                    &model.process.alpha, &model.process.secondsPerByte, &model.process.overhead,
                    &model.contention};
}

/// "checksum TAB key TAB values": the checksum covers everything after the first tab.
std::string makeLine(const std::string& key, const LinkModel& model) {
  std::string body = key + '\t';
  for (const double* value : numbersOf(model)) body += number(*value) + ' ';
  return hexadecimal(hash(body)) + '\t' + body;
}

bool intact(const std::string& line) {
  const auto tab = line.find('\t');
  return tab != std::string::npos && hexadecimal(hash(line.substr(tab + 1))) == line.substr(0, tab);
}

/// The key of an intact line.
std::string keyOf(const std::string& line) {
  const auto begin = line.find('\t') + 1;
  return line.substr(begin, line.rfind('\t') - begin);
}

bool plausible(const Link& link) {
  const auto within = [](double value, double most) { return std::isfinite(value) && value >= 0 && value <= most; };
  return within(link.alpha, 1) && within(link.secondsPerByte, 1) && link.secondsPerByte > 0 && within(link.overhead, 1);
}

std::optional<LinkModel> modelOf(const std::string& line) {
  LinkModel model;
  const char* at = line.data() + line.rfind('\t') + 1;
  const char* const end = line.data() + line.size();
  for (double* value : numbersOf(model)) {
    const auto read = std::from_chars(at, end, *value);
    if (read.ec != std::errc() || read.ptr == end) return std::nullopt;
    at = read.ptr + 1;
  }
  const bool good = plausible(model.node) && plausible(model.network) && plausible(model.process) &&
                    std::isfinite(model.contention) && model.contention >= 1;
  model.remembered = true;
  return good ? std::optional(model) : std::nullopt;
}

enum class Kind { Missing, Foreign, OtherVersion, Ours };

struct Contents {
  Kind kind = Kind::Missing;
  std::vector<std::string> lines;  ///< intact ones
};

Contents readFile(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return {errno == ENOENT ? Kind::Missing : Kind::Foreign, {}};
  if (status.st_size == 0 && S_ISREG(status.st_mode)) return {};
  // Opening anything except a regular file could block; a larger file was not written by this library.
  if (!S_ISREG(status.st_mode) || status.st_size > kMostBytes) return {Kind::Foreign, {}};
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || line.rfind(kMagic, 0) != 0) return {Kind::Foreign, {}};
  if (line.substr(std::strlen(kMagic)) != kVersion) return {Kind::OtherVersion, {}};
  Contents contents{Kind::Ours, {}};
  while (std::getline(file, line)) {
    if (intact(line)) {
      contents.lines.push_back(line);
    } else {
      log(LogLevel::Warn, "SEQPAR_TUNING_CACHE: a damaged line in ", path, " is ignored");
    }
  }
  return contents;
}

/// Writes a temporary file in the folder of `path` and renames it to `path`. Returns false, with errno, on failure.
bool replaceFile(const std::string& path, const std::string& text) {
  std::string name = path + ".XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) return false;
  size_t done = 0;
  ssize_t wrote = 0;
  while (done < text.size() && (wrote = write(file, text.data() + done, text.size() - done)) > 0) {
    done += static_cast<size_t>(wrote);
  }
  const bool whole = done == text.size() && fchmod(file, kShared) == 0;
  const bool closed = close(file) == 0;
  if (whole && closed && rename(name.c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  unlink(name.c_str());
  errno = error;
  return false;
}

}  // namespace

std::string tuningKey(const Topology& topology, const std::string& transport) {
  std::ostringstream placement;
  for (size_t rank = 0; rank < topology.nodes.size(); ++rank) {
    placement << topology.nodes[rank] << '.' << topology.processes[rank] << ' ';
  }
  std::string hosts, processors;
  for (const auto& host : topology.hostIds) hosts += host + '\n';
  for (const auto& model : topology.models) {
    if (processors.find(model) == std::string::npos) processors += (processors.empty() ? "" : " + ") + model;
  }
  std::string key = concat("seqpar ", SEQPAR_VERSION_MAJOR, '.', SEQPAR_VERSION_MINOR, '.', SEQPAR_VERSION_PATCH, "; ",
                           topology.nodes.size(), " ranks on ", topology.nodeCount, " nodes, placed ",
                           hexadecimal(hash(placement.str())), "; hosts ", hexadecimal(hash(hosts)), "; ", processors,
                           "; ", topology.contention, " ranks a processor; ", transport);
  std::replace_if(
      key.begin(), key.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return key;
}

std::optional<TuningCache> TuningCache::fromEnvironment() {
  const auto path = envText("SEQPAR_TUNING_CACHE");
  if (!path || *path == "off") return std::nullopt;
  return TuningCache(*path);
}

std::optional<LinkModel> TuningCache::find(const std::string& key) const {
  const auto contents = readFile(path_);
  if (contents.kind == Kind::Foreign) {
    log(LogLevel::Warn, "SEQPAR_TUNING_CACHE: ", path_, " cannot be read or is no tuning cache; it is ignored");
  }
  if (contents.kind == Kind::OtherVersion) {
    log(LogLevel::Info, "SEQPAR_TUNING_CACHE: ", path_, " has another version's format; it will be replaced");
  }
  for (const auto& line : contents.lines) {
    if (keyOf(line) != key) continue;
    if (const auto model = modelOf(line)) return model;
    log(LogLevel::Warn, "SEQPAR_TUNING_CACHE: a line in ", path_, " contains invalid values; it is ignored");
  }
  return std::nullopt;
}

void TuningCache::store(const std::string& key, const LinkModel& model) const {
  auto contents = readFile(path_);
  if (contents.kind == Kind::Foreign) return;  // find() has logged it
  auto& lines = contents.lines;
  std::erase_if(lines, [&](const std::string& line) { return keyOf(line) == key; });
  lines.push_back(makeLine(key, model));
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
  std::string text = concat(kMagic, kVersion, '\n');
  for (const auto& line : lines) text += line + '\n';
  if (!replaceFile(path_, text)) {
    log(LogLevel::Warn, "SEQPAR_TUNING_CACHE: ", path_, " cannot be written: ", std::strerror(errno));
  }
}

}  // namespace seqpar
