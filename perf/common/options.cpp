#include "options.h"

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

const std::string& nameOf(int value, const Names& names) {
  for (const auto& entry : names) {
    if (entry.second == value) return entry.first;
  }
  throw std::logic_error("no name for " + std::to_string(value));
}

OptionParser::OptionParser(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

void OptionParser::add(char shortName, std::string name, std::string argument, std::string help, Setter set) {
  options_.push_back({shortName, std::move(name), std::move(argument), std::move(help), std::move(set)});
}

void OptionParser::addName(char shortName, std::string name, std::string help, const Names& names, int& into) {
  add(shortName, std::move(name), "NAME", std::move(help),
      [names, &into](const std::string& text) { into = parseName(text, names); });
}

void OptionParser::addNames(char shortName, std::string name, std::string help, const Names& names,
                            std::vector<int>& into) {
  add(shortName, std::move(name), "NAMES", std::move(help),
      [names, &into](const std::string& text) { into = parseNames(text, names); });
}

void OptionParser::addCount(char shortName, std::string name, std::string help, long most, size_t& into) {
  add(shortName, std::move(name), "N", std::move(help),
      [most, &into](const std::string& text) { into = static_cast<size_t>(parseInteger(text, 1, most)); });
}

const OptionParser::Option& OptionParser::find(const std::string& flag) const {
  for (const Option& option : options_) {
    if (flag == "--" + option.name) return option;
    if (option.shortName != 0 && flag == std::string{'-', option.shortName}) return option;
  }
  throw UsageError("unknown option " + flag + "; " + program_ + " -h lists what there is");
}

bool OptionParser::parse(std::span<char* const> arguments) const {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "-h" || argument == "--help") return false;
    if (argument.size() < 2 || argument[0] != '-') {
      throw UsageError("unexpected argument '" + argument + "'; expected an option such as -b 2M");
    }
    const bool isLong = argument[1] == '-';
    const size_t flagEnd = isLong ? argument.find('=') : 2;
    const std::string flag = argument.substr(0, flagEnd);
    const bool attached = flagEnd < argument.size();
    const Option& option = find(flag);
    std::string value = "1";
    if (option.argument.empty()) {
      if (attached) throw UsageError("option " + flag + " takes no value, but got '" + argument + "'");
    } else if (attached) {
      value = argument.substr(flagEnd + (isLong ? 1 : 0));
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      throw UsageError("option " + flag + " needs a value: " + option.argument);
    }
    try {
      option.set(value);
    } catch (const UsageError& error) {
      throw UsageError("option " + flag + ": " + error.what());
    }
  }
  return true;
}

std::string OptionParser::help() const {
  constexpr size_t kIndent = 34;
  std::string text = "Usage: " + program_ + " [options]\n" + summary_ + "\n\n";
  for (const Option& option : options_) {
    std::string line = option.shortName != 0 ? std::string("  -") + option.shortName + ", " : "      ";
    line += "--" + option.name + (option.argument.empty() ? "" : " " + option.argument);
    line.resize(std::max(kIndent, line.size() + 1), ' ');
    text += line + option.help + "\n";
  }
  std::string line = "  -h, --help";
  line.resize(kIndent, ' ');
  return text + line + "this text\n";
}

}  // namespace seqpar::perf
