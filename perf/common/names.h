// Values of options: strict parsing of numbers, sizes and names.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace seqpar::perf {

/// An invalid command line; the program exits with status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An integer in [least, most].
long parseInteger(const std::string& text, long least, long most);
/// A finite number in [least, most].
double parseNumber(const std::string& text, double least, double most);
/// A number of bytes, with an optional suffix K, M or G (powers of 1024) in either case.
size_t parseBytes(const std::string& text);

/// In parseBytes()'s format: "2M".
std::string shownBytes(size_t bytes);

/// --kv-heads, or --heads if it was not given (0). Throws UsageError unless it divides them.
long keyHeadsOf(long heads, long given);

/// Names that an option accepts, with their values.
using Names = std::vector<std::pair<std::string, int>>;
/// The value of one name.
int parseName(const std::string& text, const Names& names);
/// The values of names separated by commas; "all" means every name.
std::vector<int> parseNames(const std::string& text, const Names& names);
/// The name of `value`, which must be in `names`.
const std::string& nameOf(int value, const Names& names);

}  // namespace seqpar::perf
