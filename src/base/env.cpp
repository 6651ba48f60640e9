#include "base/env.h"

#include <strings.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace seqpar {
namespace {

template <typename Number>
std::optional<Number> parse(const char* name, Number least, Number most, const char* kind) {
  const auto text = envText(name);
  if (!text) return std::nullopt;
  Number value{};
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code != std::errc() || end != text->data() + text->size() || !(value >= least && value <= most)) {
    fail(seqparInvalidUsage, "environment variable ", name, "=\"", *text, "\": expected ", kind, " from ", least,
         " to ", most);
  }
  return value;
}

}  // namespace

std::optional<std::string> envText(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> envChoice(const char* name, std::span<const Choice> choices) {
  const auto text = envText(name);
  if (!text) return std::nullopt;
  std::string valid;
  for (const auto& [spelling, meaning] : choices) {
    if (strcasecmp(spelling, text->c_str()) == 0) return meaning;
    valid += valid.empty() ? spelling : concat(", ", spelling);
  }
  fail(seqparInvalidUsage, "environment variable ", name, "=\"", *text, "\": expected one of ", valid);
}

std::optional<long> envInteger(const char* name, long least, long most) {
  return parse<long>(name, least, most, "a whole number");
}

std::optional<double> envNumber(const char* name, double least, double most) {
  return parse<double>(name, least, most, "a number");
}

}  // namespace seqpar
