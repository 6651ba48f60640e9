// The seed of a test's random inputs.
#pragma once

#include <cstdlib>
#include <random>

namespace seqpar::test {

/// A random seed, or the value of SEQPAR_TEST_SEED, which repeats a run.
inline unsigned drawSeed() {
  const char* const given = std::getenv("SEQPAR_TEST_SEED");
  return given == nullptr ? std::random_device{}() : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
}

}  // namespace seqpar::test
