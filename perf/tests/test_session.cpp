#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/session.h"
#include "common/values.h"

using namespace seqpar::perf;

namespace {

/// Exit status of a binary that passes one small result, of two ranks, to the checker: correct, or with one wrong bit
/// of one element on rank 1.
int runWith(bool corrupted, std::vector<std::string> arguments) {
  Program program;
  program.name = "test";
  program.addOptions = [](OptionParser&) {};
  program.layout = [] { return Layout{{}, false, {}}; };
  program.body = [corrupted](Session& session) {
    const std::vector<float> want{1, 2, 3, 4};
    auto got = std::make_shared<std::vector<float>>(4);
    Work work;
    work.prepare = [got] { std::memset(got->data(), 0xff, sizeof(float) * 4); };
    work.run = [=, rank = session.group.rank()] {
      *got = want;
      auto* const bytes = reinterpret_cast<unsigned char*>(got->data());
      if (corrupted && rank == 1) bytes[4] ^= 1;
    };
    work.wrong = [=] { return countWrong(got->data(), want.data(), 4, seqparFloat32); };
    std::vector<Case> cases(1);
    cases[0].row.bytes = 16;
    cases[0].row.count = 4;
    cases[0].outOfPlace = work;
    for (const Row& row : session.measure(cases)) {
      if (row.outOfPlace.checked && row.outOfPlace.wrong != (corrupted ? 1u : 0u))
        throw std::runtime_error("miscounted");
      session.report.row(row);
    }
  };
  arguments.insert(arguments.begin(), {"test", "-t", "2", "-n", "2"});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return runProgram(program, static_cast<int>(pointers.size()), pointers.data());
}

}  // namespace

TEST_CASE("A wrong result makes the exit status 1, a right one 0") {
  CHECK(runWith(false, {}) == 0);
  CHECK(runWith(true, {}) == 1);
  CHECK(runWith(true, {"-B", "-I"}) == 1);
}

TEST_CASE("Unchecked results give no errors") {
  CHECK(runWith(true, {"-c", "0"}) == 0);
}

TEST_CASE("Invalid arguments give exit status 2") {
  CHECK(runWith(false, {"-n", "none"}) == 2);
}
