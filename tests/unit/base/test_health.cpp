#include "base/health.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/memory.h"

using namespace seqpar;

TEST_CASE("the first failure is kept and thrown by every check") {
  Health health;
  CHECK(health.ok());
  CHECK_NOTHROW(health.check());
  CHECK(health.fail(seqparRemoteError, "first"));
  CHECK_FALSE(health.fail(seqparSystemError, "second"));
  CHECK(health.result() == seqparRemoteError);
  CHECK_THROWS_WITH(health.check(), "first");
}

TEST_CASE("the first of many concurrent failures wins, and the hook runs once") {
  Health health;
  std::atomic<int> hooks{0};
  std::atomic<int> firsts{0};
  health.onFailure([&](seqparResult_t, const std::string&) {
    ++hooks;
    health.fail(seqparInternalError, "from the hook");  // must neither lock nor run the hook again
  });
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] { firsts += health.fail(seqparRemoteError, std::to_string(i)) ? 1 : 0; });
    }
  }
  CHECK(hooks == 1);
  CHECK(firsts == 1);
}

TEST_CASE("texts of errors without memory are cut off at their space") {
  std::string text;
  text.reserve(kReservedText);
  assignCallText(text, "call", "call: cause");
  CHECK(text == "call: cause");
  assignCallText(text, "call", "cause");
  CHECK(text == "call: cause");
  CHECK(text.capacity() >= kReservedText);
  const std::string part(700, 'x');
  const FixedText fixed{"a ", part, part};
  CHECK(std::string_view(fixed) == ("a " + part + part).substr(0, 1024));
}

TEST_CASE("a deadline of zero never expires") {
  CHECK_FALSE(Deadline().passed());
  CHECK_FALSE(Deadline(std::chrono::milliseconds(0)).passed());
  CHECK_FALSE(Deadline(std::chrono::hours(1)).passed());
  CHECK(Deadline(std::chrono::milliseconds(0)).left(std::chrono::milliseconds(7)).count() == 7);
  const Deadline soon(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(soon.passed());
  CHECK(soon.left(std::chrono::milliseconds(7)).count() == 0);
}
