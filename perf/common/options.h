// The command line of a perf binary: a table of options, strict parsing, generated help.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace seqpar::perf {

/// What the caller asked for cannot be understood; the program exits with status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A whole number in [least, most].
long parseInteger(const std::string& text, long least, long most);
/// A finite number in [least, most].
double parseNumber(const std::string& text, double least, double most);
/// A number of bytes, with an optional suffix K, M or G (powers of 1024) in either case.
size_t parseBytes(const std::string& text);

/// Names that an option accepts and what they stand for.
using Names = std::vector<std::pair<std::string, int>>;
/// The value of one name.
int parseName(const std::string& text, const Names& names);
/// The values of names separated by commas; "all" stands for every one.
std::vector<int> parseNames(const std::string& text, const Names& names);
/// The name of `value`, which must be in `names`.
const std::string& nameOf(int value, const Names& names);

class OptionParser {
 public:
  using Setter = std::function<void(const std::string&)>;

  OptionParser(std::string program, std::string summary);

  /// Adds "-s, --name ARGUMENT". shortName 0: none. An empty `argument` makes a switch, whose setter gets "1".
  void add(char shortName, std::string name, std::string argument, std::string help, Setter set);
  /// Options whose value goes to `into`: one of `names`, several of them, or a whole number in [1, most].
  void addName(char shortName, std::string name, std::string help, const Names& names, int& into);
  void addNames(char shortName, std::string name, std::string help, const Names& names, std::vector<int>& into);
  void addCount(char shortName, std::string name, std::string help, long most, size_t& into);

  /// Calls the setters in the order of the arguments. False if help was asked for. Throws UsageError.
  bool parse(std::span<char* const> arguments) const;

  std::string help() const;

 private:
  struct Option {
    char shortName;
    std::string name, argument, help;
    Setter set;
  };
  const Option& find(const std::string& flag) const;

  std::string program_, summary_;
  std::vector<Option> options_;
};

}  // namespace seqpar::perf
