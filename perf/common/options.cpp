#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace seqpar::perf {
namespace {

constexpr size_t kHelpColumn = 36;

std::string spelling(char shortName, const std::string& name) {
  return (shortName != 0 ? std::string{'-', shortName, ','} : std::string()) + "--" + name;
}

/// The error text for the first of `rest`, the arguments that no option took.
std::string unknown(std::span<char* const> arguments, const std::vector<std::string>& rest) {
  const auto first = std::find_if(arguments.begin(), arguments.end(), [&](const char* argument) {
    return std::find(rest.begin(), rest.end(), argument) != rest.end();
  });
  const std::string text = first == arguments.end() ? rest.front() : *first;
  return text.starts_with("-") ? "there is no option " + text : "'" + text + "' belongs to no option";
}

}  // namespace

OptionParser::OptionParser(const std::string& program, const std::string& summary)
    : app_(std::make_unique<CLI::App>(summary, program)) {
  app_->get_formatter()->column_width(kHelpColumn);
}

OptionParser::~OptionParser() = default;

CLI::Option& OptionParser::make(char shortName, const std::string& name, const std::string& argument,
                                const std::string& help, Setter set) {
  const std::string flags = spelling(shortName, name);
  CLI::Option* const option = app_->add_option(
      flags,
      [flags, set = std::move(set)](const CLI::results_t& values) {
        try {
          set(values.back());
        } catch (const UsageError& error) {
          throw UsageError("option " + flags + ": " + error.what());
        }
        return true;
      },
      help);
  option->type_name(argument)->group(group_)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *option;
}

void OptionParser::add(char shortName, const std::string& name, const std::string& argument, const std::string& help,
                       Setter set) {
  if (!argument.empty()) {
    make(shortName, name, argument, help, std::move(set));
    return;
  }
  app_->add_flag_callback(
          spelling(shortName, name), [set = std::move(set)] { set("1"); }, help)
      ->group(group_);
}

void OptionParser::addOptional(char shortName, const std::string& name, const std::string& argument,
                               const std::string& help, Setter set) {
  make(shortName, name, argument, help, std::move(set))
      .default_str("1")
      ->expected(0, 1)
      ->option_text("[" + argument + "]");
}

void OptionParser::addWithVariable(const std::string& name, const std::string& argument, const std::string& help,
                                   const std::string& variable, Setter set) {
  make(0, name, argument, help, std::move(set)).envname(variable);
}

void OptionParser::addName(char shortName, const std::string& name, const std::string& help, const Names& names,
                           int& into) {
  add(shortName, name, "NAME", help, [names, &into](const std::string& text) { into = parseName(text, names); });
}

void OptionParser::addNames(char shortName, const std::string& name, const std::string& help, const Names& names,
                            std::vector<int>& into) {
  add(shortName, name, "NAMES", help, [names, &into](const std::string& text) { into = parseNames(text, names); });
}

void OptionParser::addCount(char shortName, const std::string& name, const std::string& help, long most, size_t& into) {
  add(shortName, name, "N", help,
      [most, &into](const std::string& text) { into = static_cast<size_t>(parseInteger(text, 1, most)); });
}

bool OptionParser::has(char shortName) const {
  return app_->get_option_no_throw(std::string{'-', shortName}) != nullptr;
}

bool OptionParser::parse(std::span<char* const> arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11's order
  try {
    app_->parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ExtrasError&) {
    throw UsageError(unknown(arguments, app_->remaining()) + "; -h lists all options");
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; -h lists all options");
  }
  return true;
}

std::string OptionParser::help() const {
  return app_->help();
}

}  // namespace seqpar::perf
