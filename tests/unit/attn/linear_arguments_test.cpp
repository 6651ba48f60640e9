// Errors name the wrong arguments of linear attention, before anything is sent.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "seqpar/attn.h"

namespace {

constexpr int64_t kWrongEnd[] = {0, 2}, kFalling[] = {0, 2, 1, 3}, kNotFromZero[] = {1, 3};

seqparAttnDesc_t description() {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = seqparAttnGla;
  desc.tokens = 3;
  desc.heads = 2;
  desc.headDim = 4;
  return desc;
}

template <class Change>
void refuses(seqparResult_t expected, const std::string& text, Change change) {
  auto desc = description();
  change(desc);
  seqparAttnPlan_t plan = nullptr;
  CHECK(seqparAttnPlanCreate(&plan, &desc, nullptr) == expected);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
  CHECK(plan == nullptr);
}

TEST_CASE("descriptions that linear attention does not support are refused") {
  refuses(seqparInvalidArgument, "kvHeads is 3", [](auto& d) { d.kvHeads = 3; });
  refuses(seqparInvalidArgument, "gateTypes[0] is 1", [](auto& d) { d.gateTypes[0] = seqparFloat16; });
  refuses(seqparInvalidArgument, "kvTokens is 5", [](auto& d) { d.kvTokens = 5; });
  refuses(seqparInvalidArgument, "family is " + std::to_string(SEQPAR_ATTN_FAMILIES),
          [](auto& d) { d.family = SEQPAR_ATTN_FAMILIES; });
  refuses(seqparInvalidUsage, "softcap", [](auto& d) { d.softcap = 2; });
  refuses(seqparInvalidUsage, "windowLeft", [](auto& d) { d.windowLeft = 2; });
  refuses(seqparInvalidUsage, "ring", [](auto& d) { d.algorithm = seqparAttnRing; });
  refuses(seqparInvalidUsage, "zeco", [](auto& d) {
    d.family = seqparAttnSoftmax;
    d.algorithm = seqparAttnZeco;
  });
  refuses(seqparInvalidUsage, "contiguous", [](auto& d) {
    static seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    layout.tokens = 3;
    layout.kind = seqparZigzag;
    d.layout = &layout;
  });
  refuses(seqparInvalidArgument, "cuSeqlens[1] is 2, expected 3", [](auto& d) {
    d.sequences = 1;
    d.cuSeqlens = kWrongEnd;
  });
  refuses(seqparInvalidArgument, "cuSeqlens[2] is 1", [](auto& d) {
    d.sequences = 3;
    d.cuSeqlens = kFalling;
  });
  refuses(seqparInvalidArgument, "cuSeqlens[0] is 1", [](auto& d) {
    d.sequences = 1;
    d.cuSeqlens = kNotFromZero;
  });
}

/// Arrays of 3 tokens, 2 heads of length 4, and calls that change one argument each.
class Calls {
 public:
  Calls() {
    auto desc = description();
    REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
    forward.q.data = rows[0].data();
    forward.k.data = rows[1].data();
    forward.v.data = rows[2].data();
    forward.gates[0].data = rows[3].data();
    forward.out.data = rows[4].data();
    forward.saved = states[0].data();
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.gates[0] = forward.gates[0];
    backward.saved = forward.saved;
    backward.dOut.data = rows[5].data();
    backward.dq.data = rows[6].data();
    backward.dk.data = rows[7].data();
    backward.dv.data = rows[8].data();
    backward.dGates[0].data = rows[9].data();
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls() { seqparAttnPlanDestroy(plan); }

  template <class Change>
  void refusesForward(seqparResult_t expected, const std::string& text, Change change) {
    auto args = forward;
    change(args);
    CHECK(seqparAttnForward(plan, &args, nullptr) == expected);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
  }
  template <class Change>
  void refusesBackward(seqparResult_t expected, const std::string& text, Change change) {
    auto args = backward;
    change(args);
    CHECK(seqparAttnBackward(plan, &args, nullptr) == expected);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
  }

  seqparAttnPlan_t plan = nullptr;
  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  std::vector<std::vector<float>> rows{10, std::vector<float>(24)}, states{4, std::vector<float>(32)};
};

TEST_CASE("a query of a family returns its gates, and other ids are refused") {
  for (int id = 0; id < SEQPAR_ATTN_FAMILIES; ++id) {
    INFO("family " << id);
    seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
    const auto result = seqparAttnFamilyQuery(id, &info);
    CHECK(result == (id == seqparAttnSoftmax ? seqparInvalidArgument : seqparSuccess));
    if (result != seqparSuccess) continue;
    CAPTURE(info.name, info.transition);
    REQUIRE((info.gates >= 0 && info.gates < SEQPAR_ATTN_MAX_GATES));
    const std::vector<std::string> names(info.gateNames, info.gateNames + info.gates);
    CHECK(std::set(names.begin(), names.end()).size() == names.size());
    // The shape of the decays and the kind of a transition without products of keys belong together.
    const auto decay = std::find(names.begin(), names.end(), "log_decay");
    const int shape = decay == names.end() ? -1 : info.gateShapes[decay - names.begin()];
    if (info.transition == seqparScanSum) CHECK(shape == -1);
    if (info.transition == seqparScanDiag) CHECK(shape == seqparAttnGatePerChannel);
    if (info.transition == seqparScanScalar) CHECK((shape == seqparAttnGatePerToken || shape == seqparAttnGatePerHead));
    for (int other = 1; other < id; ++other) {
      seqparAttnFamilyInfo_t earlier = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
      REQUIRE(seqparAttnFamilyQuery(other, &earlier) == seqparSuccess);
      CHECK(std::string(earlier.name) != info.name);
    }
    CHECK(info.gateNames[info.gates] == nullptr);
  }
  seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
  CHECK(seqparAttnFamilyQuery(SEQPAR_ATTN_FAMILIES, &info) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("family is " + std::to_string(SEQPAR_ATTN_FAMILIES) +
                                                       ", expected 1 to " + std::to_string(SEQPAR_ATTN_FAMILIES - 1)));
  CHECK(seqparAttnFamilyQuery(seqparAttnGla, nullptr) == seqparInvalidArgument);
  info.magic = 0;
  CHECK(seqparAttnFamilyQuery(seqparAttnGla, &info) == seqparInvalidArgument);
}

TEST_CASE("missing, overlapping and superfluous arguments of linear attention are refused") {
  Calls calls;
  calls.refusesForward(seqparInvalidUsage, "not prepared", [](auto&) {});
  REQUIRE(seqparAttnPlanPrepare(calls.plan, nullptr, 0) == seqparSuccess);
  REQUIRE(seqparAttnForward(calls.plan, &calls.forward, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnBackward(calls.plan, &calls.backward, nullptr) == seqparSuccess);

  calls.refusesForward(seqparInvalidArgument, "args->gates[0].data is NULL",
                       [](auto& a) { a.gates[0].data = nullptr; });
  calls.refusesForward(seqparInvalidArgument, "args->saved is NULL", [](auto& a) { a.saved = nullptr; });
  calls.refusesForward(seqparInvalidArgument, "args->k.tokenStride is 3", [](auto& a) { a.k = {a.k.data, 24, 3, 4}; });
  calls.refusesForward(seqparInvalidArgument, "overlaps", [](auto& a) { a.final = a.saved + 3; });
  calls.refusesForward(seqparInvalidArgument, "overlaps", [](auto& a) { a.out.data = a.gates[0].data; });
  calls.refusesForward(seqparInvalidArgument, "overlaps", [](auto& a) { a.initial = a.saved; });
  calls.refusesForward(seqparInvalidArgument, "magic", [](auto& a) { a.magic = 0; });
  calls.refusesBackward(seqparInvalidArgument, "args->gates[0].data is NULL",
                        [](auto& a) { a.gates[0].data = nullptr; });
  calls.refusesBackward(seqparInvalidArgument, "args->saved is NULL", [](auto& a) { a.saved = nullptr; });
  calls.refusesBackward(seqparInvalidArgument, "args->dOut.data is NULL", [](auto& a) { a.dOut.data = nullptr; });
  calls.refusesBackward(seqparInvalidArgument, "overlaps", [](auto& a) { a.dGates[0].data = a.dk.data; });
  calls.refusesBackward(seqparInvalidArgument, "overlaps", [&](auto& a) { a.dInitial = calls.states[0].data(); });
}

TEST_CASE("a plan for linear attention without backward keeps no states and reports that") {
  auto desc = description();
  desc.tokens = 4096;
  seqparAttnPlan_t plan = nullptr;
  size_t withBackward = 0, without = 0;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanWorkspaceSize(plan, &withBackward) == seqparSuccess);
  seqparAttnPlanDestroy(plan);
  desc.training = 0;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanWorkspaceSize(plan, &without) == seqparSuccess);
  CHECK(without < withBackward);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  const seqparAttnBackwardArgs_t args = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  CHECK(seqparAttnBackward(plan, &args, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("training"));
  size_t bytes = 0;
  REQUIRE(seqparAttnPlanExplain(plan, nullptr, &bytes) == seqparSuccess);
  std::string text(bytes, ' ');
  REQUIRE(seqparAttnPlanExplain(plan, text.data(), &bytes) == seqparSuccess);
  for (const char* const name : {"\"zeco\"", "\"lasp1\"", "\"lasp2\"", "\"local\"", "\"gla\""}) {
    CHECK_THAT(text, Catch::Contains(name));
  }
  seqparAttnPlanDestroy(plan);
}

}  // namespace
