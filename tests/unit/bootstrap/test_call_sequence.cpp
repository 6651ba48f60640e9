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

TEST_CASE("ranks that refuse the same call continue in any order of the notices") {
  CallSequence one, other;
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  const Refusal early = one.refuse("early");
  CHECK(other.textOf(early).empty());  // before its refusal
  const Refusal late = other.refuse("late");
  CHECK(one.textOf(late).empty());  // after its refusal
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  // Both refuse alike, after the call has communicated; the news arrives when both have gone on.
  const Refusal first = one.refuse("again"), second = other.refuse("again");
  for (CallSequence* rank : {&one, &other}) CHECK(call(*rank).empty());
  CHECK(one.textOf(second).empty());
  CHECK(other.textOf(first).empty());
}

TEST_CASE("a rank in a call that another rank refuses gets that rank's error") {
  CallSequence one, other;
  const Refusal refusal = one.refuse("no queries");
  SECTION("it waits already") {
    CHECK(call(other).empty());
    CHECK(other.textOf(refusal) == "no queries");
  }
  SECTION("it is still checking its arguments") {
    other.next();
    CHECK(other.textOf(refusal).empty());
    CHECK(other.communicate() == "no queries");
  }
}

TEST_CASE("a rank that refuses a later call is distinguished from one that refuses this call") {
  CallSequence one, other;
  CHECK(call(other).empty());
  const Refusal later = other.refuse("later");
  const Refusal now = one.refuse("now");
  CHECK(other.textOf(now) == "now");
  CHECK(one.textOf(later) == "later");
}

TEST_CASE("communication outside of the program's calls is not counted") {
  CallSequence one, other;
  for (int i = 0; i < 3; ++i) CHECK(other.communicate().empty());
  const Refusal refusal = one.refuse("no queries");
  CHECK(other.textOf(refusal).empty());
  CHECK(other.communicate().empty());
  CHECK(call(other) == "no queries");
}
