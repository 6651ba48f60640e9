// LaunchSequence and its records, checked by execution: the emulator runs each launch that may start early before the
// launches that it overlaps. Results must be correct, and wrong if a record lacks accesses so that other launches
// overlap.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "linear_overlap.h"
#include "support/emulator/strands.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;

namespace {

#ifdef SEQPAR_STRANDS
constexpr int kLeast = 0;
#else
constexpr int kLeast = 1;  ///< wrong records that a test must find
#endif
constexpr Buffers LaunchRecord::*kAll[] = {&LaunchRecord::earlyReads, &LaunchRecord::earlyWrites, &LaunchRecord::reads,
                                           &LaunchRecord::writes};

/// Runs a call with correct records; then with a record that lacks its accesses of one kind, if other launches then
/// start early or skip a wait. call(launches) adds the launches; error() is at most `most` if the results are correct.
/// Returns the number of wrong records.
template <class Call, class Error>
int check(const Call& call, const Error& error, double most, uint64_t seed) {
  Launches correct{Missing{}};
  call(correct);
  correct.run(seed);
  CHECK(error() <= most);
  int found = 0;
#ifndef SEQPAR_STRANDS  // then ThreadSanitizer reports the race, whatever the results
  for (size_t launch = 0; launch < correct.launches(); ++launch) {
    for (const auto accesses : kAll) {
      Launches wrong(Missing{launch, accesses});
      call(wrong);
      if (wrong.derived() == correct.derived()) continue;
      INFO("launch " << launch << " lacks list " << (std::find(kAll, kAll + 4, accesses) - kAll));
      wrong.run(seed);
      CHECK_FALSE(error() <= most);
      ++found;
    }
  }
#endif
  return found;
}

}  // namespace

TEST_CASE("launch records of the forward on the emulator") {
  const seqpar::test::Seed seed;
  for (const Gate gate : {Gate::Token, Gate::Channel}) {
    for (const Maps content : {Maps::PerSegment, Maps::Prefix}) {
      ForwardSpec spec = specOf(gate, 190, 80, 32, Decays::Typical);
      spec.seed = seed;
      INFO(spec.name() << nameOf(content));
      ForwardCall call(spec, content);
      const int found = check([&](Launches& to) { call.whole(to); }, [&] { return call.error(); }, 1, seed);
      CHECK(found >= (content == Maps::PerSegment ? kLeast : 0));
    }
  }
}

TEST_CASE("launch records of a forward with a lead on the emulator") {
  const seqpar::test::Seed seed;
  for (const Maps content : {Maps::PerSegment, Maps::Prefix}) {
    ForwardSpec spec = specOf(Gate::Token, 250, 80, 32, Decays::Typical);
    spec.leadTokens = 64;
    spec.seed = seed;
    INFO(spec.name() << nameOf(content));
    ForwardCall call(spec, content);
    check([&](Launches& to) { call.whole(to); }, [&] { return call.error(); }, 1, seed);
  }
}

TEST_CASE("launch records of forward parts that share a workspace on the emulator") {
  const seqpar::test::Seed seed;
  for (const Gate gate : {Gate::Token, Gate::Channel}) {
    ForwardSpec spec = specOf(gate, 250, 80, 32, Decays::Typical);
    spec.seed = seed;
    INFO(spec.name());
    ForwardCall call(spec, Maps::PerSegment);
    const int found = check([&](Launches& to) { call.parts(to); }, [&] { return call.error(); }, 1, seed);
    CHECK(found >= 2 * kLeast);
  }
}

TEST_CASE("launch records of the backward on the emulator") {
  const seqpar::test::Seed seed;
  for (const Gate gate : {Gate::Token, Gate::Channel}) {
    for (const Maps content : {Maps::PerSegment, Maps::Prefix}) {
      for (const bool keeps : {true, false}) {
        BackwardShape shape = backward::test::shapeOf(gate, 130, 80, 32, 0.02);
        shape.content = content;
        INFO(shape.name() << (keeps ? ", keeps" : "") << ", seed " << seed);
        BackwardCall call(shape, seed);
        constexpr double kMost = 4 * 0x1p-9;
        const int found =
            check([&](Launches& to) { call.whole(to, keeps); }, [&] { return call.error(); }, kMost, seed);
        CHECK(found >= (content == Maps::PerSegment && !keeps ? kLeast : 0));
      }
    }
  }
}

TEST_CASE("the emulator rejects launches that break the rules of programmatic dependent launch") {
  emulator::Grid first, second;
  first.kernel = second.kernel = [] {};
  second.early = true;
  CHECK_THROWS_AS(emulator::runStream({first, second}, 0), std::logic_error);
  second.kernel = [] { ptx::griddepcontrolWait(); };
  CHECK_NOTHROW(emulator::runStream({first, second}, 0));
  first.nextAfterWait = true;
  CHECK_THROWS_AS(emulator::runStream({first, second}, 0), std::logic_error);
  first.kernel = [] {
    ptx::griddepcontrolWait();
    ptx::griddepcontrolLaunchDependents();
  };
  CHECK_NOTHROW(emulator::runStream({first, second}, 0));
}

namespace {

/// Names of launches in the order in which they run: lower case before the wait, upper case after it. Atomic, since
/// launches that overlap are concurrent to ThreadSanitizer.
class Order {
 public:
  void add(char name) { names_[count_++] = name; }
  std::string take() {
    const std::string result(names_.begin(), names_.begin() + count_.exchange(0));
    return result;
  }

 private:
  std::array<std::atomic<char>, 16> names_ = {};
  std::atomic<size_t> count_ = 0;
};

}  // namespace

TEST_CASE("the emulator runs launches before their predecessors") {
  Order order;
  const auto grid = [&](char name, bool early, bool nextAfterWait = false) {
    emulator::Grid made;
    made.kernel = [&order, name, nextAfterWait] {
      if (ptx::thread() == 0) order.add(name);
      ptx::griddepcontrolWait();
      if (nextAfterWait) ptx::griddepcontrolLaunchDependents();
      if (ptx::thread() == 0) order.add(static_cast<char>(name - 'a' + 'A'));
    };
    made.early = early;
    made.nextAfterWait = nextAfterWait;
    return made;
  };
  emulator::runStream({grid('a', false), grid('b', true), grid('c', true), grid('d', false)}, 0);
  CHECK(order.take() == "cbaABCdD");
  emulator::runStream({grid('a', false), grid('b', true, true), grid('c', true)}, 0);
  CHECK(order.take() == "baAcBC");
}
