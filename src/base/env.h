// Environment variables: every one that the library reads is read through here, and a value that means nothing is an
// error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

namespace seqpar {

/// A spelling and what it stands for.
using Choice = std::pair<const char*, int>;

/// The variable's value; empty if it is unset or the empty string.
std::optional<std::string> envText(const char* name);

/// The variable as one of `choices`, in any case. Anything else is InvalidUsage with the list of what is valid.
std::optional<int> envChoice(const char* name, std::span<const Choice> choices);

/// The variable as a whole number in [least, most]. Anything else is InvalidUsage.
std::optional<long> envInteger(const char* name, long least, long most);

/// The variable as a finite number in [least, most]. Anything else is InvalidUsage.
std::optional<double> envNumber(const char* name, double least, double most);

}  // namespace seqpar
