// The command line of a perf binary: nccl-tests' options, and each binary's own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "names.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace seqpar::perf {

class OptionParser {
 public:
  using Setter = std::function<void(const std::string&)>;

  OptionParser(const std::string& program, const std::string& summary);
  OptionParser(const OptionParser&) = delete;
  OptionParser& operator=(const OptionParser&) = delete;
  ~OptionParser();

  /// Options that are added from now on come under this heading in the help.
  void group(std::string heading) { group_ = std::move(heading); }

  /// Adds "-s, --name ARGUMENT". shortName 0: none. An empty `argument` makes a switch, whose setter gets "1". Where an
  /// option is given more than once, the last one counts.
  void add(char shortName, const std::string& name, const std::string& argument, const std::string& help, Setter set);
  /// add() of an option that may stand without its value, which is then "1".
  void addOptional(char shortName, const std::string& name, const std::string& argument, const std::string& help,
                   Setter set);
  /// add() of an option that an environment variable sets where the command line does not.
  void addWithVariable(const std::string& name, const std::string& argument, const std::string& help,
                       const std::string& variable, Setter set);
  /// Options whose value goes to `into`: one of `names`, several of them, or a whole number in [1, most].
  void addName(char shortName, const std::string& name, const std::string& help, const Names& names, int& into);
  void addNames(char shortName, const std::string& name, const std::string& help, const Names& names,
                std::vector<int>& into);
  void addCount(char shortName, const std::string& name, const std::string& help, long most, size_t& into);
  /// True if there is "-s" already.
  bool has(char shortName) const;

  /// Calls the setters. False if help was asked for. Throws UsageError.
  bool parse(std::span<char* const> arguments);

  std::string help() const;

 private:
  CLI::Option& make(char shortName, const std::string& name, const std::string& argument, const std::string& help,
                    Setter set);

  std::unique_ptr<CLI::App> app_;
  std::string group_ = "Options";
};

}  // namespace seqpar::perf
