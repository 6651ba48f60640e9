// Log lines on stderr, as SEQPAR_DEBUG asks.
#pragma once

#include <string>

#include "base/error.h"

namespace seqpar {

enum class LogLevel { None = 0, Warn = 1, Info = 2, Trace = 3 };

/// True if lines of `level` are written. SEQPAR_DEBUG is read once.
bool logs(LogLevel level) noexcept;

/// Writes one line with host, process and thread in front. One write() a line, so that lines of ranks do not mix.
void writeLog(LogLevel level, const std::string& text) noexcept;

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (logs(level)) writeLog(level, concat(parts...));
}

}  // namespace seqpar
