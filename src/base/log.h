// Log lines on stderr, controlled by SEQPAR_DEBUG.
#pragma once

#include <string>

#include "base/error.h"

namespace seqpar {

enum class LogLevel { None = 0, Warn = 1, Info = 2, Trace = 3 };

/// The most detailed level that is written. SEQPAR_DEBUG is read once.
LogLevel chosenLevel() noexcept;

/// True if lines of level `wanted` are written.
inline bool logs(LogLevel wanted) noexcept {
  static const LogLevel chosen = chosenLevel();
  return wanted <= chosen;
}

/// Writes one line, prefixed with host, process and thread. One write() per line, so that lines of ranks do not mix.
void writeLog(LogLevel level, const std::string& text) noexcept;

/// Without memory there is no line.
template <typename... Parts>
void log(LogLevel level, const Parts&... parts) noexcept {
  if (!logs(level)) return;
  try {
    writeLog(level, concat(parts...));
  } catch (const std::exception&) {
    return;
  }
}

/// True if notices are written: always, except with SEQPAR_DEBUG=NONE.
bool notices() noexcept;

/// A warning that is written also without SEQPAR_DEBUG.
template <typename... Parts>
void notice(const Parts&... parts) {
  if (notices()) writeLog(LogLevel::Warn, concat(parts...));
}

}  // namespace seqpar
