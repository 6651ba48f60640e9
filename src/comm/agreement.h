// The debug check that all ranks call a collective with matching arguments.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "comm/named_value.h"
#include "seqpar/seqpar.h"
#include "transport/mailbox.h"

namespace seqpar {

/// A call with its arguments, for comparison with the other ranks' calls.
class Comparison {
 public:
  static constexpr size_t kLongestCall = 39;
  /// `call` is a literal. All ranks must have equal `values`.
  Comparison(const char* call, std::span<const NamedValue> values);
  /// Only `members` must have equal `values`, in a call of only these ranks.
  Comparison(const char* call, std::vector<int> members, std::span<const NamedValue> values);

  /// In a call of all ranks: values that must be equal only among `members`, which include this rank. Each rank is in
  /// one group.
  void addOfGroup(std::vector<int> members, std::span<const NamedValue> values);

  const char* call() const { return call_; }

  /// Collective: text with the call, the arguments and the ranks that differ from the first; "" if none does. For
  /// arrays that differ, except those of addOfGroup(), gathers the elements up to the first difference.
  std::string differences(Allgather& control) const;
  /// The comparison by messages, inside an operation. Gathers elements of all arrays.
  std::string differences(Mailbox& mail) const;

 private:
  static constexpr size_t kMostValues = SEQPAR_MOST_COMPARED;
  /// A rank's description of its call, as exchanged.
  struct Call {
    std::array<char, kLongestCall + 1> name{};
    uint64_t arrays = 0;  ///< a bit for each value that is an array
    std::array<int64_t, kMostValues> values{};
  };
  /// Consecutive elements of an array of `length`.
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
  std::vector<int> members_;  ///< empty: all ranks
  std::vector<Argument> arguments_;
  Call mine_;
  std::shared_ptr<Comparison> ofGroup_;
};

/// Collective: compares the call's name and all values between the ranks. A difference is InvalidUsage on every rank.
/// For calls that wait for the other ranks anyway; other calls use Communicator::compareNext().
void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values);

}  // namespace seqpar
