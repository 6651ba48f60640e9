// Bad arguments get a result and a sentence that names them, and leave the outputs alone.
#include <limits>
#include <string>

#include "gla_case.h"

namespace {

struct Call {
  std::vector<float> q = std::vector<float>(24, 1.0f), k = q, v = std::vector<float>(16, 1.0f),
                     logDecay = std::vector<float>(24, -1.0f);
  std::vector<float> out = std::vector<float>(16, 42.0f), saved = std::vector<float>(12, 42.0f), final = saved;
  seqparGlaParams_t params = SEQPAR_GLA_PARAMS_INITIALIZER;
  const float* qPointer = q.data();
  const float* initial = nullptr;
  float* outPointer = out.data();
  float* savedPointer = saved.data();
  float* finalPointer = final.data();

  Call() {
    params.tokens = 4;
    params.heads = 2;
    params.dk = 3;
    params.dv = 2;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  seqparResult_t run(const seqparGlaParams_t* given) {
    return seqparGlaForward(qPointer, k.data(), v.data(), logDecay.data(), initial, outPointer, savedPointer,
                            finalPointer, given, nullptr, nullptr);
  }
  void refused(const seqparGlaParams_t* given, const std::string& words) {
    const auto result = run(given);
    const std::string text = seqparAttnGetLastError();
    CAPTURE(text);
    CHECK(result == seqparInvalidArgument);
    CHECK_THAT(text, Catch::Matchers::StartsWith("seqparGlaForward: ") && Catch::Matchers::Contains(words));
    CHECK(out == std::vector<float>(16, 42.0f));
  }
};

TEST_CASE("the arguments that the other cases spoil are good ones") {
  Call call;
  CHECK(call.run(&call.params) == seqparSuccess);
  CHECK(call.out != std::vector<float>(16, 42.0f));
}

TEST_CASE("parameters out of range are refused by name") {
  Call call;
  auto& p = call.params;
  call.refused(nullptr, "params is NULL");
  SECTION("magic") {
    p.magic = 1;
    call.refused(&p, "magic");
  }
  SECTION("batch") {
    p.batch = 0;
    call.refused(&p, "params->batch is 0, expected at least 1");
  }
  SECTION("tokens") {
    p.tokens = -1;
    call.refused(&p, "params->tokens is -1");
  }
  SECTION("heads") {
    p.heads = 0;
    call.refused(&p, "params->heads is 0");
  }
  SECTION("dk") {
    p.dk = 0;
    call.refused(&p, "params->dk is 0");
  }
  SECTION("dv") {
    p.dv = -7;
    call.refused(&p, "params->dv is -7");
  }
  SECTION("overflow") {
    p.tokens = std::numeric_limits<int64_t>::max() / 2;
    call.refused(&p, "overflow");
  }
  SECTION("type") {
    p.dataType = 9;
    call.refused(&p, "params->dataType is 9");
  }
  SECTION("wire type") {
    p.wireType = 3;
    call.refused(&p, "params->wireType is 3, expected 0 to 2");
  }
  SECTION("algorithm") {
    p.algorithm = -1;
    call.refused(&p, "params->algorithm is -1");
  }
  SECTION("blocks") {
    p.blocks = -2;
    call.refused(&p, "params->blocks is -2");
  }
  SECTION("scale") {
    p.scale = std::numeric_limits<float>::infinity();
    call.refused(&p, "params->scale is inf");
  }
}

TEST_CASE("missing and overlapping arrays are refused by name") {
  Call call;
  SECTION("no input") {
    call.qPointer = nullptr;
    call.refused(&call.params, "q is NULL, expected 24 numbers");
  }
  SECTION("no output") {
    call.outPointer = nullptr;
    call.refused(&call.params, "out is NULL");
  }
  SECTION("output on an input") {
    call.outPointer = call.v.data() + 15;
    call.refused(&call.params, "overlaps");
  }
  SECTION("two states in one place") {
    call.finalPointer = call.savedPointer + 11;
    call.refused(&call.params, "savedState");
  }
  SECTION("state in place") {
    call.initial = call.finalPointer;
    call.refused(&call.params, "initial");
  }
}

TEST_CASE("arrays of no tokens may be NULL, and the state passes through") {
  seqparGlaParams_t params = SEQPAR_GLA_PARAMS_INITIALIZER;
  params.heads = 1;
  params.dk = 2;
  params.dv = 2;
  const std::vector<float> initial = {1, 2, 3, 4};
  std::vector<float> saved(4), final(4);
  REQUIRE(seqparGlaForward(nullptr, nullptr, nullptr, nullptr, initial.data(), nullptr, saved.data(), final.data(),
                           &params, nullptr, nullptr) == seqparSuccess);
  CHECK(saved == initial);
  CHECK(final == initial);
}

TEST_CASE("a structure of an older header, which lacks the last fields, gets their defaults") {
  Call call;
  call.params.blocks = -5;  // beyond what this caller's header knows
  call.params.size = offsetof(seqparGlaParams_t, blocks);
  CHECK(call.run(&call.params) == seqparSuccess);
}

}  // namespace
