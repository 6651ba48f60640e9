// The debug check that the ranks of a collective were called with matching arguments.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "comm/named_value.h"
#include "seqpar/seqpar.h"
#include "transport/mailbox.h"

namespace seqpar {

/// A call with its arguments, to be compared with the other ranks' calls.
class Comparison {
 public:
  static constexpr size_t kLongestCall = 39;
  /// `call` is a literal.
  Comparison(const char* call, std::span<const NamedValue> values);

  const char* call() const { return call_; }

  /// Collective: names the call, the arguments and the ranks that differ from rank 0; "" if none does. Of arrays that
  /// differ it gathers the elements up to the first one that does.
  std::string differences(Allgather& control) const;
  /// The same by messages, inside an operation.
  std::string differences(Mailbox& mail) const;

 private:
  static constexpr size_t kMostValues = SEQPAR_MOST_COMPARED;
  /// What a rank says of its call.
  struct Call {
    std::array<char, kLongestCall + 1> name{};
    uint64_t arrays = 0;  ///< a bit for each value that is an array
    std::array<int64_t, kMostValues> values{};
  };
  /// Some elements of an array of `length`.
  struct Elements {
    int64_t length = 0;
    std::array<int64_t, 127> some{};
  };
  struct Argument {
    const char* name;
    NamedValue::Kind kind;
    std::vector<int64_t> elements;  ///< of an array
  };

  template <typename Ranks>
  std::string differencesAmong(Ranks& ranks) const;
  template <typename Ranks>
  std::string differencesOfArrays(const Argument& array, Ranks& ranks) const;

  const char* call_;
  std::vector<Argument> arguments_;
  Call mine_;
};

/// Collective: compares the call's name and all values between the ranks. A difference is InvalidUsage on every rank.
/// For calls that wait for the other ranks anyway; others use Communicator::compareNext().
void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values);

}  // namespace seqpar
