#include "base/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "base/env.h"

namespace seqpar {
namespace {

constexpr std::array<Choice, 4> kLevels{{{"NONE", 0}, {"WARN", 1}, {"INFO", 2}, {"TRACE", 3}}};
constexpr std::array<const char*, 4> kNames{"", "WARN", "INFO", "TRACE"};

/// SEQPAR_DEBUG; empty if it is unset.
std::optional<LogLevel> readLevel() noexcept {
  try {
    const auto level = envChoice("SEQPAR_DEBUG", kLevels);
    return level ? std::optional(static_cast<LogLevel>(*level)) : std::nullopt;
  } catch (const std::exception& error) {
    writeLog(LogLevel::Warn, error.what());
    return LogLevel::Warn;
  }
}

std::optional<LogLevel> level() noexcept {
  static const auto chosen = readLevel();
  return chosen;
}

std::string hostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

LogLevel chosenLevel() noexcept {
  return level().value_or(LogLevel::None);
}

bool notices() noexcept {
  return level() != LogLevel::None;
}

void writeLog(LogLevel level, const std::string& text) noexcept {
  try {
    static const auto* const host = std::make_unique<std::string>(hostName()).release();  // threads may outlive statics
    const auto line = concat(*host, ":", getpid(), ":", syscall(SYS_gettid), " seqpar ",
                             kNames[static_cast<size_t>(level)], " ", text, "\n");
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::exception&) {
    return;  // a line that cannot be written is not an error
  }
}

}  // namespace seqpar
