// The flight record as a file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "base/env.h"
#include "base/log.h"
#include "base/ticks.h"
#include "comm/call_log.h"

namespace seqpar {
namespace {

constexpr const char* kVariable = "SEQPAR_TRACE_FILE";

std::string hex(uint64_t id) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(id));
  return text.data();
}

std::string hostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string expand(const std::string& pattern, uint64_t id, int rank) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    switch (i + 1 < pattern.size() ? pattern[++i] : '\0') {
      case 'r':
        path += std::to_string(rank);
        break;
      case 'c':
        path += hex(id);
        break;
      case 'p':
        path += std::to_string(getpid());
        break;
      case 'h':
        path += hostName();
        break;
      case '%':
        path += '%';
        break;
      default:
        fail(seqparInvalidUsage, "environment variable ", kVariable, "=", pattern,
             ": expected one of %r (rank), %c (communicator), %p (process), %h (host) and %% after each %");
    }
  }
  if (pattern.find("%r") == std::string::npos) path += concat(".", rank);
  return path;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string timeText(int64_t ticks) {
  return ticks == 0 ? "null" : std::to_string(nanosecondsAt(ticks));
}

/// The end time of the last operation, if it is known.
int64_t doneAt(const CallRecord& record) {
  const uint32_t operations = record.operations.load();
  if (operations == 0 || record.ended.load() < operations) return 0;
  return record.done.load() != 0 ? record.done.load() : record.returned.load();
}

std::string recordJson(const CallRecord& record) {
  const char* const algorithm = record.algorithm.load();
  std::string text =
      concat("{\"number\":", record.number.load(), ",\"collective\":", record.collective.load(),
             ",\"call\":", quoted(record.name.load()),
             ",\"algorithm\":", algorithm == nullptr ? "null" : quoted(algorithm), ",\"bytes\":", record.bytes.load());
  text +=
      concat(",\"called_ns\":", timeText(record.called.load()), ",\"returned_ns\":", timeText(record.returned.load()),
             ",\"begun_ns\":", timeText(record.started.load()), ",\"done_ns\":", timeText(doneAt(record)),
             ",\"operations\":", record.operations.load(), ",\"ended\":", record.ended.load(),
             ",\"failed\":", record.failed.load() ? "true" : "false", ",\"values\":{");
  const std::vector<NamedValue> values = valuesOf(record);
  for (size_t i = 0; i < values.size(); ++i) {
    // Names may repeat, for example the dimensions of a grid.
    bool repeated = false;
    for (size_t j = 0; j < i; ++j) repeated = repeated || std::strcmp(values[j].name, values[i].name) == 0;
    const std::string name = repeated ? concat(values[i].name, " ", i) : values[i].name;
    const std::string value = inWords(values[i].kind, values[i].value);
    const bool number = values[i].kind == NamedValue::Kind::Number;
    text += concat(i == 0 ? "" : ",", quoted(name), ":", number ? value : quoted(value));
  }
  return text + "}}";
}

/// `path`, or `path` followed by the communicator's id if this process has written another communicator's record there.
std::string ownPath(const std::string& path, uint64_t id, int rank) {
  static std::mutex mutex;
  static auto* const written = std::make_unique<std::map<std::string, std::pair<uint64_t, int>>>().release();
  const std::lock_guard lock(mutex);
  const auto& owner = written->try_emplace(path, id, rank).first->second;
  return owner == std::pair{id, rank} ? path : concat(path, ".", hex(id));
}

void writeFile(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) failErrno(concat("open of ", path));
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  if (close(file) != 0 || done < text.size()) failErrno(concat("write to ", path));
}

}  // namespace

void CallLog::identify(uint64_t id, int rank, int size) {
  id_ = id;
  rank_ = rank;
  size_ = size;
  if (const auto pattern = envText(kVariable)) path_ = expand(*pattern, id, rank);
}

std::string CallLog::id() const {
  return hex(id_);
}

std::string CallLog::json(const std::string& reason) const {
  std::string text = concat("{\"version\":1,\"communicator\":\"", hex(id_), "\",\"rank\":", rank_, ",\"ranks\":", size_,
                            ",\"host\":", quoted(hostName()), ",\"pid\":", getpid(), ",\"reason\":", quoted(reason),
                            ",\"recorded\":", last_.load(), ",\"calls\":[");
  const uint64_t last = last_.load();
  const char* separator = "\n";
  for (uint64_t number = last < kCalls ? 1 : last - kCalls + 1; number <= last; ++number) {
    const CallRecord& record = (*records_)[(number - 1) % kCalls];
    if (record.number.load(std::memory_order_acquire) != number) continue;
    text += separator + recordJson(record);
    separator = ",\n";
  }
  return text + "\n]}\n";
}

void CallLog::write(const std::string& reason) noexcept {
  if (path_.empty()) return;
  try {
    const std::string path = ownPath(path_, id_, rank_);
    const std::lock_guard lock(writing_);
    writeFile(path, json(reason));
    log(LogLevel::Info, "rank ", rank_, " wrote its last calls to ", path);
  } catch (const std::exception& error) {
    log(LogLevel::Warn, kVariable, ": ", error.what());
  }
}

}  // namespace seqpar
