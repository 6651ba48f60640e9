#include "base/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "base/env.h"

namespace seqpar {
namespace {

constexpr std::array<Choice, 4> kLevels{{{"NONE", 0}, {"WARN", 1}, {"INFO", 2}, {"TRACE", 3}}};
constexpr std::array<const char*, 4> kNames{"", "WARN", "INFO", "TRACE"};

LogLevel readLevel() noexcept {
  try {
    return static_cast<LogLevel>(envChoice("SEQPAR_DEBUG", kLevels).value_or(0));
  } catch (const std::exception& error) {
    writeLog(LogLevel::Warn, error.what());
    return LogLevel::Warn;
  }
}

std::string hostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

bool logs(LogLevel level) noexcept {
  static const LogLevel chosen = readLevel();
  return level <= chosen;
}

void writeLog(LogLevel level, const std::string& text) noexcept {
  try {
    static const std::string host = hostName();
    const auto line = concat(host, ":", getpid(), ":", syscall(SYS_gettid), " seqpar ",
                             kNames[static_cast<size_t>(level)], " ", text, "\n");
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::exception&) {
    return;  // a line that cannot be made is not worth a failure
  }
}

}  // namespace seqpar
