// Random programs with the C interface's objects, by seed: lifetimes [--seed S] [--programs N]. Exits with 1 if one
// finds something wrong. A program that hangs is ended by the test runner; its seed is the last line.
#include "fault/lifetimes.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "common/draw_seed.h"

int main(int argc, char** argv) {
  unsigned seed = seqpar::test::drawSeed(), programs = 10;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto value = static_cast<unsigned>(std::strtoul(argv[i + 1], nullptr, 10));
    if (std::strcmp(argv[i], "--seed") == 0) seed = value;
    if (std::strcmp(argv[i], "--programs") == 0) programs = value;
  }
  int wrong = 0;
  for (unsigned program = seed; program != seed + programs; ++program) {
    std::printf("seed %u\n", program);
    std::fflush(stdout);
    for (const auto run : {seqpar::test::shareStreams, seqpar::test::shareCommunicators}) {
      try {
        run(program);
      } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        ++wrong;
      }
    }
  }
  std::printf("%u programs, %d wrong\n", programs, wrong);
  return wrong == 0 ? 0 : 1;
}
