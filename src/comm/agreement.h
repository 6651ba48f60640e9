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

  /// Collective: names the call, the arguments and the ranks that differ from rank 0; "" if none does.
  std::string differences(Allgather& control) const;
  /// The same by messages, inside an operation.
  std::string differences(Mailbox& mail) const;

 private:
  static constexpr size_t kMostValues = SEQPAR_MOST_COMPARED;
  struct Call {
    std::array<char, kLongestCall + 1> name{};
    std::array<int64_t, kMostValues> values{};
  };
  std::string differences(std::span<const Call> all) const;

  const char* call_;
  std::vector<const char*> names_;
  Call mine_;
};

/// Collective: compares the call's name and all values between the ranks. A difference is InvalidUsage on every rank.
/// For calls that wait for the other ranks anyway; others use Communicator::compareNext().
void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values);

}  // namespace seqpar
