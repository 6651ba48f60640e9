#include "bootstrap/process_identity.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <string>

#include "base/error.h"
#include "bootstrap/token.h"

namespace seqpar {
namespace {

std::string readFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

uint64_t bootNumber() {
  static const uint64_t number = [] {
    const std::string text = readFile("/proc/sys/kernel/random/boot_id");
    return text.empty() ? 0 : digest(std::as_bytes(std::span(text)));
  }();
  return number;
}

/// The time at which a process started, in ticks since the host's start; none for one that has ended.
std::optional<uint64_t> startOf(int64_t pid) {
  const std::string text = readFile(concat("/proc/", pid, "/stat"));
  // The name in parentheses may contain any characters.
  const size_t name = text.rfind(')');
  if (name == std::string::npos) return std::nullopt;
  constexpr int kFieldsBeforeStart = 18;  // after the state
  std::istringstream fields(text.substr(name + 1));
  std::string state, skipped;
  uint64_t start = 0;
  fields >> state;
  for (int i = 0; i < kFieldsBeforeStart; ++i) fields >> skipped;
  if (!(fields >> start) || state == "Z" || state == "X") return std::nullopt;
  return start;
}

}  // namespace

ProcessIdentity thisProcess() {
  const int64_t pid = getpid();
  return {bootNumber(), startOf(pid).value_or(0), pid};
}

bool isVisible(const ProcessIdentity& process) {
  return process.boot != 0 && process.boot == bootNumber() && process.start != 0 && !hasEnded(process);
}

bool hasEnded(const ProcessIdentity& process) {
  return startOf(process.pid) != process.start;
}

}  // namespace seqpar
