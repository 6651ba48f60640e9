// Sizes and strides that overflow, and buffers that are not aligned to their elements, in every attention call: refused
// by name before anything is allocated or read. tests/unit/api/test_sizes.cpp tests the collectives.
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "common/sanitized.h"
#include "rank_threads.h"
#include "seqpar/attn.h"

using seqpar::attn::test::RankThreads;

namespace {

/// From slightly more than any memory to the values where signed and unsigned integers wrap.
constexpr std::array<uint64_t, 7> kSizes{uint64_t{1} << 53,       uint64_t{1} << 60,       uint64_t{1} << 62,
                                         (uint64_t{1} << 62) + 3, (uint64_t{1} << 63) - 1, uint64_t{1} << 63,
                                         ~uint64_t{0} - 4095};

void refused(const std::string& what, const char* call, seqparResult_t result) {
  CAPTURE(what);
  CHECK(result == seqparInvalidArgument);
  CHECK(std::string(seqparAttnGetLastError()).rfind(call, 0) == 0);
}

seqparAttnDesc_t smallPlan(int family) {
  seqparAttnDesc_t d = SEQPAR_ATTN_DESC_INITIALIZER;
  d.family = family;
  d.batch = d.tokens = d.heads = 2;
  d.headDim = 16;
  return d;
}

seqparShortConvDesc_t smallConv() {
  seqparShortConvDesc_t d = SEQPAR_SHORT_CONV_INITIALIZER;
  d.tokens = 4;
  d.channels = 2;
  return d;
}

}  // namespace

TEST_CASE("plans of sizes that wrap are refused") {
  using Field = int64_t seqparAttnDesc_t::*;
  const std::pair<const char*, Field> fields[] = {
      {"batch", &seqparAttnDesc_t::batch},      {"tokens", &seqparAttnDesc_t::tokens},
      {"heads", &seqparAttnDesc_t::heads},      {"kvHeads", &seqparAttnDesc_t::kvHeads},
      {"headDim", &seqparAttnDesc_t::headDim},  {"valueDim", &seqparAttnDesc_t::valueDim},
      {"kvTokens", &seqparAttnDesc_t::kvTokens}};
  for (const int family : {seqparAttnSoftmax, seqparAttnGla}) {
    for (const auto& [name, field] : fields) {
      if (family != seqparAttnSoftmax && field == &seqparAttnDesc_t::kvTokens) continue;  // it has no cross-attention
      for (const uint64_t size : kSizes) {
        auto desc = smallPlan(family);
        desc.*field = static_cast<int64_t>(size);
        seqparAttnPlan_t plan = nullptr;
        refused(name + (" = " + std::to_string(size)), "seqparAttnPlanCreate",
                seqparAttnPlanCreate(&plan, &desc, nullptr));
        CHECK(plan == nullptr);
      }
    }
  }
}

TEST_CASE("linear attention whose chunks' states wrap is refused") {
  auto desc = smallPlan(seqparAttnGla);  // each tensor is countable, and so is a state
  desc.tokens = int64_t{1} << 31;
  desc.headDim = int64_t{1} << 18;
  seqparAttnPlan_t plan = nullptr;
  refused("states of chunks", "seqparAttnPlanCreate", seqparAttnPlanCreate(&plan, &desc, nullptr));
}

TEST_CASE("plans of any countable size are created without allocating their memory") {
  const auto [batch, tokens, heads, dim] = GENERATE(table<int64_t, int64_t, int64_t, int64_t>({
      {1, 64, int64_t{1} << 32, 128},  // 256 TiB of states
      {int64_t{1} << 30, 2, 8, 64},
      {4, int64_t{1} << 36, 16, 16},
      {1, int64_t{1} << 42, 1, 16},
  }));
  const int family = GENERATE(seqparAttnGla, seqparAttnScalar, seqparAttnFixed, seqparAttnSum);
  CAPTURE(batch, tokens, heads, dim, family);
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = family;
  desc.batch = batch;
  desc.tokens = tokens;
  desc.heads = heads;
  desc.headDim = dim;
  const RankThreads comms(2);
  const auto said = comms.each([&](int rank) {
    seqparAttnPlan_t plan = nullptr;
    size_t bytes = 0;
    if (seqparAttnPlanCreate(&plan, &desc, comms[rank]) != seqparSuccess) return std::string(seqparAttnGetLastError());
    seqparAttnPlanWorkspaceSize(plan, &bytes);
    seqparAttnPlanDestroy(plan);
    return std::string(bytes > (size_t{1} << 40) ? "" : "a workspace of few bytes");
  });
  CHECK(said == std::vector<std::string>(2));
}

#ifndef SEQPAR_SANITIZED
TEST_CASE("a failed workspace allocation is an error with its size") {
  auto desc = smallPlan(seqparAttnGla);
  desc.batch = desc.heads = 1;
  desc.tokens = int64_t{1} << 44;  // states of chunks are 2^48 bytes, also if they are stored for one head at a time
  seqparAttnPlan_t plan = nullptr;
  size_t bytes = 0;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanWorkspaceSize(plan, &bytes) == seqparSuccess);
  REQUIRE(bytes > size_t{1} << 47);  // more than a process has addresses for
  CHECK(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSystemError);
  CHECK(std::string(seqparAttnGetLastError()) ==
        "seqparAttnPlanPrepare: no memory: " + std::to_string(bytes) + " bytes for the workspace of an attention plan");
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}
#endif

TEST_CASE("tensors whose strides wrap are refused") {
  const auto desc = smallPlan(seqparAttnSoftmax);
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  std::vector<float> numbers(4 * 128), lse(8);
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  args.q.data = numbers.data();
  args.k.data = numbers.data() + 128;
  args.v.data = numbers.data() + 256;
  args.out.data = numbers.data() + 384;
  args.lse = lse.data();
  REQUIRE(seqparAttnForward(plan, &args, nullptr) == seqparSuccess);
  for (auto* const tensor : {&args.q, &args.k, &args.v, &args.out}) {
    for (auto stride :
         {&seqparAttnTensor_t::batchStride, &seqparAttnTensor_t::tokenStride, &seqparAttnTensor_t::headStride}) {
      const auto before = *tensor;
      for (const uint64_t size : kSizes) {
        *tensor = {before.data, 64, 32, 16};
        tensor->*stride = static_cast<int64_t>(size);
        refused("stride " + std::to_string(size), "seqparAttnForward", seqparAttnForward(plan, &args, nullptr));
      }
      *tensor = before;
    }
  }
  REQUIRE(seqparAttnForward(plan, &args, nullptr) == seqparSuccess);
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

TEST_CASE("short convolutions of sizes that wrap are refused") {
  using Field = int64_t seqparShortConvDesc_t::*;
  const std::pair<const char*, Field> fields[] = {{"batch", &seqparShortConvDesc_t::batch},
                                                  {"tokens", &seqparShortConvDesc_t::tokens},
                                                  {"channels", &seqparShortConvDesc_t::channels}};
  for (const auto& [name, field] : fields) {
    for (const uint64_t size : kSizes) {
      auto desc = smallConv();
      desc.*field = static_cast<int64_t>(size);
      seqparShortConv_t conv = nullptr;
      refused(name + (" = " + std::to_string(size)), "seqparShortConvCreate",
              seqparShortConvCreate(&conv, &desc, nullptr));
      CHECK(conv == nullptr);
    }
  }
  auto desc = smallConv();  // each is valid alone, the product is not
  desc.tokens = desc.channels = int64_t{1} << 32;
  seqparShortConv_t conv = nullptr;
  refused("tokens x channels", "seqparShortConvCreate", seqparShortConvCreate(&conv, &desc, nullptr));
}

TEST_CASE("buffers of a short convolution that are not aligned to their elements are refused") {
  const auto desc = smallConv();
  seqparShortConv_t conv = nullptr;
  REQUIRE(seqparShortConvCreate(&conv, &desc, nullptr) == seqparSuccess);
  alignas(64) std::array<std::byte, 512> memory{};
  for (size_t bad = 0; bad < 4; ++bad) {
    const auto at = [&](size_t i) { return memory.data() + 64 * i + (i == bad ? 2 : 0); };
    refused("forward", "seqparShortConvForward", seqparShortConvForward(conv, at(0), at(1), at(2), at(3), nullptr));
  }
  for (size_t bad = 0; bad < 7; ++bad) {
    const auto at = [&](size_t i) { return memory.data() + 64 * i + (i == bad ? 2 : 0); };
    seqparShortConvBackwardArgs_t args = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
    args.x = at(0);
    args.weight = at(1);
    args.bias = at(2);
    args.dy = at(3);
    args.dx = at(4);
    args.dWeight = reinterpret_cast<float*>(at(5));
    args.dBias = reinterpret_cast<float*>(at(6));
    refused("backward", "seqparShortConvBackward", seqparShortConvBackward(conv, &args, nullptr));
  }
  CHECK(seqparShortConvDestroy(conv) == seqparSuccess);
}
