#include "names.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace seqpar::perf {
namespace {

std::string list(const Names& names) {
  std::string text;
  for (const auto& [name, value] : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string shown(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

long parseInteger(const std::string& text, long least, long most) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw UsageError("'" + text + "' is not a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most));
  }
  return value;
}

double parseNumber(const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value < least || value > most) {
    throw UsageError("'" + text + "' is not a number from " + shown(least) + " to " + shown(most));
  }
  return value;
}

size_t parseBytes(const std::string& text) {
  size_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  unsigned shift = 0;
  bool valid = error == std::errc();
  if (valid && end != last) {
    const char suffix = static_cast<char>(std::toupper(static_cast<unsigned char>(*end)));
    shift = suffix == 'K' ? 10 : suffix == 'M' ? 20 : 30;
    valid = end + 1 == last && (suffix == 'K' || suffix == 'M' || suffix == 'G');
  }
  if (!valid || value > (std::numeric_limits<size_t>::max() >> 8 >> shift)) {
    throw UsageError("'" + text + "' is not a number of bytes such as 512, 64K, 2M or 1G");
  }
  return value << shift;
}

int parseName(const std::string& text, const Names& names) {
  for (const auto& [name, value] : names) {
    if (name == text) return value;
  }
  throw UsageError("'" + text + "' is not one of " + list(names));
}

std::vector<int> parseNames(const std::string& text, const Names& names) {
  std::vector<int> values;
  if (text == "all") {
    for (const auto& [name, value] : names) values.push_back(value);
    return values;
  }
  size_t begin = 0;
  while (true) {
    const size_t comma = text.find(',', begin);
    const std::string item = text.substr(begin, comma == std::string::npos ? comma : comma - begin);
    bool known = false;
    for (const auto& [name, value] : names) {
      if (name != item) continue;
      values.push_back(value);
      known = true;
    }
    if (!known) throw UsageError("'" + item + "' is not one of " + list(names) + ", all");
    if (comma == std::string::npos) return values;
    begin = comma + 1;
  }
}

std::string shownBytes(size_t bytes) {
  for (const auto& [suffix, shift] : {std::pair("G", 30), std::pair("M", 20), std::pair("K", 10)}) {
    if (bytes != 0 && bytes % (size_t{1} << shift) == 0) return std::to_string(bytes >> shift) + suffix;
  }
  return std::to_string(bytes);
}

long keyHeadsOf(long heads, long given) {
  if (given == 0) return heads;
  if (heads % given == 0) return given;
  throw UsageError("option --kv-heads: '" + std::to_string(given) + "' is no divisor of --heads, " +
                   std::to_string(heads));
}

const std::string& nameOf(int value, const Names& names) {
  for (const auto& entry : names) {
    if (entry.second == value) return entry.first;
  }
  throw std::logic_error("no name for " + std::to_string(value));
}

}  // namespace seqpar::perf
