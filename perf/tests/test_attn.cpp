#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "attn/models.h"
#include "attn/reference.h"
#include "common/values.h"

using namespace seqpar::perf;

TEST_CASE("a plan's estimate is read from its explanation") {
  const std::string text =
      R"({"algorithm": "ring", "paper": "a \"ring\"", "block": "bands", "candidates": [{"algorithm": "ring_pass_q", "forwardUs": 1, )"
      R"("backwardUs": 2, "bytesSent": 3}, {"algorithm": "ring", "forwardUs": 4.5, "backwardUs": 1e+06, )"
      R"("bytesSent": 6}]})";
  const auto expected = expectationOf(text);
  CHECK(expected.algorithm == "ring");
  CHECK(expected.block == "bands");
  CHECK(expected.us(kForward) == 4.5);
  CHECK(expected.us(kBackward) == 1e6);
  CHECK(expected.us(kStep) == 1000004.5);
  CHECK(expected.bytes == 6);
  CHECK_THROWS(expectationOf("{}"));
}

TEST_CASE("decays are divided by the normalizer, exactly if it is a power of 2") {
  const unsigned seed = GENERATE(1u, 7u);
  const auto whole = drawnGates(1000, 1, seed);
  CHECK(*std::max_element(whole.begin(), whole.end()) <= 0);
  CHECK(*std::min_element(whole.begin(), whole.end()) < -1.3f);  // log(1/4) is -1.386
  for (const double normalizer : {0.25, 1.0, 3.0, kGateNormalizer, 1024.0}) {
    const auto gates = drawnGates(1000, normalizer, seed);
    for (size_t i = 0; i < gates.size(); ++i) {
      CAPTURE(normalizer, i);
      CHECK(gates[i] == static_cast<float>(whole[i] / normalizer));
      if (normalizer == 3) continue;
      std::array<std::byte, 2> stored{};
      encode(std::span(&gates[i], 1), seqparBfloat16, stored.data());
      CHECK(decode(stored.data(), 0, seqparBfloat16) == gates[i]);
    }
  }
}

TEST_CASE("betas are between 1/4 and 1") {
  const auto betas = drawnBetas(1000, GENERATE(1u, 7u));
  CHECK(*std::min_element(betas.begin(), betas.end()) >= 0.25f);
  CHECK(*std::max_element(betas.begin(), betas.end()) <= 1);
  CHECK(*std::max_element(betas.begin(), betas.end()) > 0.9f);
}

TEST_CASE("decays of models are those of their initialization") {
  const unsigned seed = GENERATE(1u, 7u);
  const auto mamba = initialDecays(Decays::Mamba2, 500, 128, seed);
  CHECK(*std::max_element(mamba.begin(), mamba.end()) < -0.0004f);  // dt at least 0.001 / 2, A at most -1
  CHECK(*std::min_element(mamba.begin(), mamba.end()) > -2.41f);    // dt at most 0.15, A at least -16
  auto chunks = mamba;
  for (auto& decay : chunks) decay *= 64;
  std::nth_element(chunks.begin(), chunks.begin() + 32000, chunks.end());
  CHECK(chunks[32000] == Approx(-4.5).margin(2));  // the median over 64 tokens
  CHECK(initialDecays(Decays::RetNet, 1, 8, seed)[0] == Approx(std::log(1 - 1.0 / 32)));
  CHECK(initialDecays(Decays::Lightning, 1, 64, seed)[63] == Approx(-1.0 / 256));
  for (const auto& shape : modelShapes()) {
    CAPTURE(shape.name);
    CHECK(shape.heads % shape.keyHeads == 0);
    CHECK(std::max(shape.keyDim, shape.valueDim) <= 512);
  }
}

TEST_CASE("the reference's ranges are each other's inverse") {
  for (const bool causal : {false, true}) {
    for (const size_t window : {0, 3}) {
      const SoftmaxProblem problem{1, 1, 1, 1, causal, window, {0, 1, 9, 20}};
      for (int64_t query = 0; query < 20; ++query) {
        const auto keys = problem.keysOf(query);
        for (int64_t key = 0; key < 20; ++key) {
          const auto queries = problem.queriesOf(key);
          const bool sees = key >= keys.first && key < keys.end;
          CAPTURE(causal, window, query, key);
          CHECK(sees == (query >= queries.first && query < queries.end));
          const bool together = (query < 1) == (key < 1) && (query < 9) == (key < 9);
          CHECK(sees == (together && (!causal || key <= query) && (window == 0 || key + 3 >= query)));
        }
      }
    }
  }
}
