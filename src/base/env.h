// Environment variables: the library reads every variable through these functions, and rejects invalid values with an
// error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

namespace seqpar {

/// A spelling and the value that it selects.
using Choice = std::pair<const char*, int>;

/// The variable's value; none if it is unset or the empty string.
std::optional<std::string> envText(const char* name);

/// The variable as one of `choices`, in any case. Any other value is InvalidUsage; the error lists the valid ones.
std::optional<int> envChoice(const char* name, std::span<const Choice> choices);

/// The variable as an integer in [least, most]. Any other value is InvalidUsage.
std::optional<long> envInteger(const char* name, long least, long most);

/// The variable as a finite number in [least, most]. Any other value is InvalidUsage.
std::optional<double> envNumber(const char* name, double least, double most);

}  // namespace seqpar
