// Repeated scans, which use cached checks and preparations.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "unit/seed.h"

using namespace seqpar::test;

namespace {

/// Small integers with exact sums and products in fp32.
std::vector<float> randomNumbers(std::mt19937& random, size_t count, int most) {
  std::uniform_int_distribution<int> pick(-most, most);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(pick(random));
  return numbers;
}

struct Inputs {
  std::vector<float> state, decay;  ///< [heads][dk][dv], [heads][dk]
};

/// The inputs of any rank.
Inputs inputsOf(unsigned seed, int step, int rank, const seqparAllScanParams_t& shape) {
  std::mt19937 random(seed + 1000u * static_cast<unsigned>(step) + static_cast<unsigned>(rank));
  const auto rows = static_cast<size_t>(shape.heads * shape.dk);
  return {randomNumbers(random, rows * static_cast<size_t>(shape.dv), 9), randomNumbers(random, rows, 2)};
}

/// Sequential reference in fp64.
std::vector<double> prefixOf(unsigned seed, int step, int rank, const seqparAllScanParams_t& shape) {
  std::vector<double> x(static_cast<size_t>(shape.heads * shape.dk * shape.dv), 0.0);
  for (int before = 0; before < rank; ++before) {
    const Inputs inputs = inputsOf(seed, step, before, shape);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = inputs.decay[i / static_cast<size_t>(shape.dv)] * x[i] + inputs.state[i];
    }
  }
  return x;
}

void scanAndCheck(unsigned seed, int step, int rank, const seqparAllScanParams_t& shape, seqparComm_t comm,
                  seqparStream_t stream) {
  const Inputs mine = inputsOf(seed, step, rank, shape);
  std::vector<float> prefix(mine.state.size(), -77.0F);
  expectSuccess(
      seqparAllScan(mine.state.data(), mine.decay.data(), nullptr, prefix.data(), nullptr, &shape, comm, stream),
      "seqparAllScan", comm);
  if (stream != nullptr) expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
  const auto expected = prefixOf(seed, step, rank, shape);
  for (size_t i = 0; i < expected.size(); ++i) {
    expect(prefix[i] == expected[i], "step ", step, ", element ", i, ": ", prefix[i], ", expected ", expected[i]);
  }
}

seqparAllScanParams_t shapeOf(int64_t heads, int64_t dk, int64_t dv) {
  seqparAllScanParams_t shape = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  shape.heads = heads;
  shape.dk = dk;
  shape.dv = dv;
  return shape;
}

}  // namespace

TEST_CASE("scans of known shapes read their arrays in every call, also on streams") {
  const seqpar::test::Seed seed;
  const auto errors = onCommunicator(3, [&](seqparComm_t comm, int rank) {
    seqparStream_t stream = nullptr;
    expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    std::mt19937 random(seed);  // equal on all ranks
    for (int step = 0; step < 200; ++step) {
      const std::vector<seqparAllScanParams_t> shapes{shapeOf(1, 1, 2), shapeOf(2, 3, 16), shapeOf(2, 16, 3)};
      auto shape = shapes[random() % shapes.size()];
      if (random() % 2 == 0) shape.algorithm = seqparScanChain + static_cast<int>(random() % 4);
      scanAndCheck(seed, step, rank, shape, comm, random() % 3 == 0 ? stream : nullptr);
    }
    expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("more shapes than the cache holds give correct results") {
  const seqpar::test::Seed seed;
  const auto errors = onCommunicator(2, [&](seqparComm_t comm, int rank) {
    for (int round = 0; round < 2; ++round) {
      for (int columns = 1; columns <= 100; ++columns) {
        scanAndCheck(seed, columns, rank, shapeOf(1, 2, columns), comm, nullptr);
      }
    }
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("calls of a known shape apply their flags and refuse invalid buffers") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    auto shape = shapeOf(1, 1, 2);
    const std::vector<float> state(2, 3.0F), decay(1, 1.0F);
    std::vector<float> prefix(2);
    const auto run = [&](float* into) {
      return seqparAllScan(state.data(), decay.data(), nullptr, into, nullptr, &shape, comm, nullptr);
    };
    const uint8_t reset = SEQPAR_SCAN_RESET_IN;
    for (int i = 0; i < 3; ++i) {
      shape.flags = nullptr;
      expectSuccess(run(prefix.data()), "seqparAllScan", comm);
      expect(prefix[0] == (rank == 0 ? 0.0F : 3.0F), "without flags: ", prefix[0]);
      shape.flags = &reset;
      expectSuccess(run(prefix.data()), "seqparAllScan", comm);
      expect(prefix[0] == 0.0F, "with a reset: ", prefix[0]);
    }
    shape.flags = nullptr;
    expect(run(nullptr) == seqparInvalidArgument, "no output was taken");
    const auto off = reinterpret_cast<float*>(reinterpret_cast<char*>(prefix.data()) + 1);
    expect(run(off) == seqparInvalidArgument, "an unaligned output was taken");
    shape.size = 1;
    expect(run(prefix.data()) == seqparInvalidArgument, "a structure of one byte was taken");
    shape.size = sizeof(shape);
    expectSuccess(run(prefix.data()), "seqparAllScan", comm);
  });
  INFO(errors);
  CHECK(errors.empty());
}
