// The command line of a perf binary: nccl-tests' options and each binary's further options.
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

  /// Sets the heading in the help for options that are added afterwards.
  void group(std::string heading) { group_ = std::move(heading); }

  /// Adds "-s, --name ARGUMENT". shortName 0: none. An empty `argument` declares a switch; its setter gets "1". If an
  /// option is given more than once, the last value counts.
  void add(char shortName, const std::string& name, const std::string& argument, const std::string& help, Setter set);
  /// add() of an option with an optional value, "1" by default.
  void addOptional(char shortName, const std::string& name, const std::string& argument, const std::string& help,
                   Setter set);
  /// add() of an option with an environment variable as its default.
  void addWithVariable(const std::string& name, const std::string& argument, const std::string& help,
                       const std::string& variable, Setter set);
  /// Options that store their value in `into`: one of `names`, several of them, or an integer in [1, most].
  void addName(char shortName, const std::string& name, const std::string& help, const Names& names, int& into);
  void addNames(char shortName, const std::string& name, const std::string& help, const Names& names,
                std::vector<int>& into);
  void addCount(char shortName, const std::string& name, const std::string& help, long most, size_t& into);
  /// True if "-s" has been added already.
  bool has(char shortName) const;

  /// Calls the setters. False if help was requested. Throws UsageError.
  bool parse(std::span<char* const> arguments);

  std::string help() const;

 private:
  CLI::Option& make(char shortName, const std::string& name, const std::string& argument, const std::string& help,
                    Setter set);

  std::unique_ptr<CLI::App> app_;
  std::string group_ = "Options";
};

}  // namespace seqpar::perf
