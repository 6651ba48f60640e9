// Which refusals of calls another rank may go on after.
#include <catch2/catch.hpp>

#include "bootstrap/call_sequence.h"

using seqpar::CallSequence;
using seqpar::Refusal;

namespace {

/// A call of the program that communicates twice.
std::string call(CallSequence& rank) {
  rank.next();
  const std::string first = rank.communicate();
  CHECK(rank.communicate().empty());
  return first;
}

}  // namespace

TEST_CASE("ranks that refuse the same call go on, whichever is told first") {
  CallSequence one, other;
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  const Refusal early = one.refuse("early");
  CHECK(other.told(early).empty());  // before its refusal
  const Refusal late = other.refuse("late");
  CHECK(one.told(late).empty());  // after its refusal
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  // Both refuse alike, after the call has communicated; the news arrives when both have gone on.
  const Refusal first = one.refuse("again"), second = other.refuse("again");
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  CHECK(one.told(second).empty());
  CHECK(other.told(first).empty());
}

TEST_CASE("a rank in the call that another one refuses is told why, at once or when it communicates") {
  CallSequence one, other;
  const Refusal refusal = one.refuse("no queries");
  SECTION("it waits already") {
    CHECK(call(other).empty());
    CHECK(other.told(refusal) == "no queries");
  }
  SECTION("it is still checking its arguments") {
    other.next();
    CHECK(other.told(refusal).empty());
    CHECK(other.communicate() == "no queries");
  }
}

TEST_CASE("a rank that refuses a later call alone is told apart from one that refuses the same") {
  CallSequence one, other;
  CHECK(call(other).empty());
  const Refusal later = other.refuse("later");
  const Refusal now = one.refuse("now");
  CHECK(other.told(now) == "now");
  CHECK(one.told(later) == "later");
}

TEST_CASE("communication outside of the program's calls is not counted") {
  CallSequence one, other;
  for (int i = 0; i < 3; ++i) CHECK(other.communicate().empty());
  const Refusal refusal = one.refuse("no queries");
  CHECK(other.told(refusal).empty());
  CHECK(other.communicate().empty());
  CHECK(call(other) == "no queries");
}
