#include "json.h"

#include <cmath>
#include <cstdio>

namespace seqpar::perf {

void Json::separate() {
  if (!first_ && !afterKey_) out_ += ',';
  first_ = afterKey_ = false;
}

Json& Json::open(char bracket) {
  separate();
  out_ += bracket;
  first_ = true;
  return *this;
}

Json& Json::close(char bracket) {
  out_ += bracket;
  first_ = false;
  return *this;
}

void Json::quote(std::string_view value) {
  out_ += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out_ += escape;
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

Json& Json::key(std::string_view name) {
  separate();
  quote(name);
  out_ += ':';
  afterKey_ = true;
  return *this;
}

Json& Json::text(std::string_view value) {
  separate();
  quote(value);
  return *this;
}

Json& Json::number(double value) {
  separate();
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  out_ += std::isfinite(value) ? digits : "null";
  return *this;
}

Json& Json::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

}  // namespace seqpar::perf
