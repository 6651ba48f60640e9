// The plan object's contract: what it refuses, and the errors' texts.

#include "small_desc.h"
#include "softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

std::string createError(const seqparAttnDesc_t& desc, seqparResult_t expected) {
  seqparAttnPlan_t plan = nullptr;
  const auto result = seqparAttnPlanCreate(&plan, &desc, nullptr);
  if (result == seqparSuccess) seqparAttnPlanDestroy(plan);
  CHECK(result == expected);
  return result == seqparSuccess ? "" : seqparAttnGetLastError();
}

TEST_CASE("an invalid field of a description is refused by name") {
  struct Wrong {
    const char* text;
    void (*change)(seqparAttnDesc_t&);
    seqparResult_t result = seqparInvalidArgument;
  };
  static const int64_t kDescending[] = {0, 5, 3, 8}, kShort[] = {0, 7}, kLate[] = {1, 8};
  static const int64_t kEnded[] = {0, 8, 3}, kBeyond[] = {0, 9};
  const Wrong all[] = {
      {"desc->magic is 1", [](seqparAttnDesc_t& d) { d.magic = 1; }},
      {"desc->family is 9, expected 0 to 7", [](seqparAttnDesc_t& d) { d.family = 9; }},
      {"desc->algorithm is 99, expected 0 (auto) or one for softmax attention: local (1), ring (2)",
       [](seqparAttnDesc_t& d) { d.algorithm = 99; }},
      {"desc->algorithm is -1", [](seqparAttnDesc_t& d) { d.algorithm = -1; }},
      {"desc->batch is 0, expected at least 1", [](seqparAttnDesc_t& d) { d.batch = 0; }},
      {"desc->tokens is -1", [](seqparAttnDesc_t& d) { d.tokens = -1; }},
      {"desc->kvTokens is -1", [](seqparAttnDesc_t& d) { d.kvTokens = -1; }},
      {"desc->heads is 0", [](seqparAttnDesc_t& d) { d.heads = 0; }},
      {"desc->kvHeads is 3, expected a divisor of heads, 2, or 0", [](seqparAttnDesc_t& d) { d.kvHeads = 3; }},
      {"desc->headDim is 0", [](seqparAttnDesc_t& d) { d.headDim = 0; }},
      {"desc->valueDim is -2", [](seqparAttnDesc_t& d) { d.valueDim = -2; }},
      {"desc->dataType is 3", [](seqparAttnDesc_t& d) { d.dataType = 3; }},
      {"desc->gateTypes[3] is 1", [](seqparAttnDesc_t& d) { d.gateTypes[3] = 1; }},
      {"desc->wireType is 7", [](seqparAttnDesc_t& d) { d.wireType = 7; }},
      {"desc->scale is nan", [](seqparAttnDesc_t& d) { d.scale = NAN; }},
      {"desc->softcap is -1", [](seqparAttnDesc_t& d) { d.softcap = -1; }},
      {"desc->mask is 2", [](seqparAttnDesc_t& d) { d.mask = 2; }},
      {"desc->windowLeft is -2", [](seqparAttnDesc_t& d) { d.windowLeft = -2; }},
      {"desc->sinks is 2", [](seqparAttnDesc_t& d) { d.sinks = 2; }},
      {"desc->reserve is 3, expected 0 to 2", [](seqparAttnDesc_t& d) { d.reserve = 3; }},
      {"desc->training is 3", [](seqparAttnDesc_t& d) { d.training = 3; }},
      {"desc->inner is 3, expected a divisor of the communicator's 1 ranks", [](seqparAttnDesc_t& d) { d.inner = 3; }},
      {"sizes overflow", [](seqparAttnDesc_t& d) { d.tokens = int64_t{1} << 48, d.headDim = 1 << 20; }},
      {"desc->cuSeqlens is NULL", [](seqparAttnDesc_t& d) { d.sequences = 1; }},
      {"desc->sequences is -1", [](seqparAttnDesc_t& d) { d.sequences = -1, d.cuSeqlens = kShort; }},
      {"desc->sequences is 9223372036854775807",  // an impossible number of bounds: none is read
       [](seqparAttnDesc_t& d) { d.sequences = INT64_MAX, d.cuSeqlens = kShort; }},
      {"desc->cuSeqlens[2] is 3, expected at least cuSeqlens[1], 5",
       [](seqparAttnDesc_t& d) { d.sequences = 3, d.cuSeqlens = kDescending; }},
      {"desc->cuSeqlens[2] is 3, expected at least cuSeqlens[1], 8",  // later entries are not read
       [](seqparAttnDesc_t& d) { d.sequences = int64_t{1} << 40, d.cuSeqlens = kEnded; }},
      {"desc->cuSeqlens[1] is 9, expected at most 8",
       [](seqparAttnDesc_t& d) { d.sequences = int64_t{1} << 40, d.cuSeqlens = kBeyond; }},
      {"desc->cuSeqlens[1] is 7, expected 8", [](seqparAttnDesc_t& d) { d.sequences = 1, d.cuSeqlens = kShort; }},
      {"desc->cuSeqlens[0] is 1, expected 0", [](seqparAttnDesc_t& d) { d.sequences = 1, d.cuSeqlens = kLate; }},
      {"desc->tokensOfRanks is 0x1, expected an address that is a multiple of its elements' 8 bytes",
       [](seqparAttnDesc_t& d) { d.tokensOfRanks = reinterpret_cast<const int64_t*>(uintptr_t{1}); }},
      {"softcap and sinks", [](seqparAttnDesc_t& d) { d.family = seqparAttnGla, d.sinks = 1; }, seqparInvalidUsage},
  };
  for (const auto& wrong : all) {
    CAPTURE(wrong.text);
    auto desc = smallDesc();
    wrong.change(desc);
    CHECK_THAT(createError(desc, wrong.result), Catch::Contains(wrong.text));
  }
  CHECK(seqparAttnPlanCreate(nullptr, nullptr, nullptr) == seqparInvalidArgument);
}

TEST_CASE("an algorithm without a feature names the algorithms with it") {
  auto desc = smallDesc();
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.tokens = 8;
  desc.layout = &layout;
  desc.algorithm = seqparAttnZigzag;
  CHECK_THAT(
      createError(desc, seqparInvalidUsage),
      Catch::Contains("desc->algorithm is 4 (zigzag), which runs on the zigzag layout only; expected one that can: "
                      "local, ring, ring_pass_q, burst"));
  layout.ranks = 2;
  CHECK_THAT(createError(desc, seqparInvalidArgument), Catch::Contains("desc->layout->ranks is 2, expected 1"));
  layout.ranks = INT32_MAX;  // refused at once, without a list of that many shards
  CHECK_THAT(createError(desc, seqparInvalidArgument),
             Catch::Contains("desc->layout->ranks is 2147483647, expected 1"));
}

TEST_CASE("ranks that compare their arguments name the differences between their plans") {
  static const int64_t kPacked[] = {0, 3, 8}, kOtherwise[] = {0, 4, 8}, kWhole[] = {0, 8}, kLengths[] = {3, 5};
  const std::pair<const char*, void (*)(seqparAttnDesc_t&)> all[] = {
      {"rank 1 has desc->mask 0, rank 0 has 1", [](seqparAttnDesc_t& d) { d.mask = seqparAttnFull; }},
      {"desc->windowLeft 2", [](seqparAttnDesc_t& d) { d.windowLeft = 2; }},
      {"rank 1 has desc->scale 0.1, rank 0 has 0.3", [](seqparAttnDesc_t& d) { d.scale = 0.1f; }},
      {"rank 1 has desc->softcap 30.5, rank 0 has 0", [](seqparAttnDesc_t& d) { d.softcap = 30.5f; }},
      {"desc->training 0", [](seqparAttnDesc_t& d) { d.training = 0; }},
      {"rank 1 has the tokens of ranks[0] 3, rank 0 has 4", [](seqparAttnDesc_t& d) { d.tokensOfRanks = kLengths; }},
      {"rank 1 has a length of desc->cuSeqlens 2, rank 0 has 3",
       [](seqparAttnDesc_t& d) { d.sequences = 1, d.cuSeqlens = kWhole; }},
      {"rank 1 has desc->cuSeqlens[1] 4, rank 0 has 3", [](seqparAttnDesc_t& d) { d.cuSeqlens = kOtherwise; }}};
  const RankThreads ranks(2, [](int) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.checkArguments = 1;
    return config;
  });
  for (const auto& one : all) {
    const auto& text = one.first;
    const auto& change = one.second;
    CAPTURE(text);
    const auto said = ranks.each([&](int rank) -> std::string {
      auto desc = smallDesc();
      desc.algorithm = seqparAttnRing;
      desc.mask = seqparAttnCausal;
      desc.scale = 0.3f;
      desc.sequences = 2;
      desc.cuSeqlens = kPacked;
      if (rank == 1) change(desc);
      seqparAttnPlan_t plan = nullptr;
      const auto result = seqparAttnPlanCreate(&plan, &desc, ranks[rank]);
      seqparAttnPlanDestroy(plan);
      return result == seqparInvalidUsage ? seqparAttnGetLastError() : seqparGetErrorString(result);
    });
    for (const auto& error : said) {
      CHECK_THAT(error, Catch::StartsWith("seqparAttnPlanCreate: the ranks disagree: ") && Catch::Contains(text));
    }
  }
  const auto said = ranks.each([&](int rank) -> std::string {
    seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
    desc.channels = 2;
    desc.tokens = 4;
    desc.silu = rank;
    seqparShortConv_t conv = nullptr;
    const auto result = seqparShortConvCreate(&conv, &desc, ranks[rank]);
    return result == seqparInvalidUsage ? seqparAttnGetLastError() : seqparGetErrorString(result);
  });
  for (const auto& error : said)
    CHECK(error == "seqparShortConvCreate: the ranks disagree: rank 1 has desc->silu 1, rank 0 has 0");
}

TEST_CASE("an error inside a plan names the caller's call") {
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  kernel.forward = kernel.backward = [](void*, const seqparAttnTile_t*, void*) { return 5; };
  auto desc = smallDesc();
  desc.kernel = &kernel;
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  std::vector<float> numbers(64 * 4), lse(16);
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  args.q.data = args.k.data = args.v.data = numbers.data();
  args.out.data = numbers.data() + 64;
  args.lse = lse.data();
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparSystemError);
  CHECK_THAT(seqparAttnGetLastError(),
             Catch::StartsWith("seqparAttnForward: ") && Catch::Contains("kernel->forward returned 5, expected 0"));
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

TEST_CASE("a call with an invalid stream or a destroyed communicator is refused by name") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  const auto desc = smallDesc();
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, comm) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  std::vector<float> numbers(64 * 8), lse(16);
  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  float* next = numbers.data();
  for (auto* tensor : {&backward.q, &backward.k, &backward.v, &backward.out, &backward.dOut, &backward.dq, &backward.dk,
                       &backward.dv}) {
    tensor->data = next;
    next += 64;
  }
  forward.q = backward.q, forward.k = backward.k, forward.v = backward.v, forward.out = backward.out;
  forward.lse = lse.data(), backward.lse = lse.data();
  const auto refused = [&](void* stream, const char* text) {
    CHECK(seqparAttnForward(plan, &forward, stream) == seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::StartsWith("seqparAttnForward: ") && Catch::Contains(text));
    CHECK(seqparAttnBackward(plan, &backward, stream) == seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::StartsWith("seqparAttnBackward: ") && Catch::Contains(text));
  };
  refused(&comm, "expected NULL or a host stream");
  CHECK(seqparAttnForward(plan, &forward, nullptr) == seqparSuccess);
  REQUIRE(seqparCommFinalize(comm) == seqparSuccess);
  CHECK(seqparAttnForward(plan, &forward, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparAttnGetLastError(), Catch::StartsWith("seqparAttnForward: comm was finalized"));
  REQUIRE(seqparCommDestroy(comm) == seqparSuccess);
  refused(nullptr, "the communicator was freed");
  CHECK_THAT(seqparGetLastError(nullptr), Catch::StartsWith("seqparAttnBackward: comm is "));
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

TEST_CASE("calls on an invalid plan or in the wrong order are refused") {
  const auto desc = smallDesc();
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("not prepared"));
  size_t bytes = 0;
  REQUIRE(seqparAttnPlanWorkspaceSize(plan, &bytes) == seqparSuccess);
  REQUIRE(bytes > 0);
  std::vector<std::byte> memory(bytes + 512);
  auto* const aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
  CHECK(seqparAttnPlanPrepare(plan, aligned, bytes - 1) == seqparInvalidArgument);
  CHECK(seqparAttnPlanPrepare(plan, aligned + 4, bytes) == seqparInvalidArgument);
  CHECK(seqparAttnPlanPrepare(plan, aligned, SIZE_MAX) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("workspace has " + std::to_string(SIZE_MAX) + " bytes"));
  CHECK(seqparAttnPlanPrepare(plan, nullptr, 5) == seqparInvalidArgument);
  REQUIRE(seqparAttnPlanPrepare(plan, aligned, bytes) == seqparSuccess);
  CHECK(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparInvalidUsage);
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(),
             Catch::Contains("seqparAttnForward: args->q.data is NULL, expected 64 elements"));
  std::vector<float> numbers(64 * 4), lse(16);
  args.q.data = numbers.data();
  args.k.data = numbers.data() + 64;
  args.v.data = numbers.data() + 128;
  args.out.data = numbers.data() + 160;  // overlaps v
  args.lse = lse.data();
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("args->v") && Catch::Contains("overlaps args->out"));
  args.out.data = numbers.data() + 192;
  args.q.tokenStride = 3;
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("args->q.tokenStride is 3, expected at least 4"));
  args.q.tokenStride = 0;
  args.out.batchStride = 64, args.out.tokenStride = 4, args.out.headStride = 8;  // head 1 starts inside head 0
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("args->out.headStride is 8, expected at least 32"));
  args.out.batchStride = args.out.tokenStride = args.out.headStride = 0;
  args.q.data = reinterpret_cast<std::byte*>(numbers.data()) + 1;
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  args.q.data = numbers.data();
  args.lse = nullptr;
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument);
  args.lse = lse.data();
  CHECK(seqparAttnForward(plan, &args, nullptr) == seqparSuccess);
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
  CHECK(seqparAttnPlanDestroy(plan) == seqparInvalidArgument);
  CHECK(seqparAttnPlanDestroy(nullptr) == seqparSuccess);
}

TEST_CASE("the memory reserved between forward and backward is required") {
  const RankThreads ranks(2);
  auto desc = smallDesc();
  desc.algorithm = seqparAttnUlysses;
  const auto reserved = [&](seqparAttnDesc_t d) {
    std::vector<size_t> bytes(2, 1);
    ranks.each([&](int rank) {
      seqparAttnPlan_t plan = nullptr;
      if (seqparAttnPlanCreate(&plan, &d, ranks[rank]) != seqparSuccess) return std::string(seqparAttnGetLastError());
      seqparAttnPlanReserveSize(plan, &bytes[static_cast<size_t>(rank)]);
      return std::string(seqparAttnPlanDestroy(plan) == seqparSuccess ? "" : "destroy");
    });
    CHECK(bytes[0] == bytes[1]);
    return bytes[0];
  };
  CHECK(reserved(desc) == 0);
  desc.reserve = 1;
  CHECK(reserved(desc) >= 4 * 32 * sizeof(float));  // q, k, v and out
  desc.training = 0;
  CHECK(reserved(desc) == 0);
  desc.training = 1;
  desc.algorithm = seqparAttnRing;
  CHECK(reserved(desc) == 0);

  desc.algorithm = seqparAttnUlysses;
  const auto said = ranks.each([&](int rank) {
    seqparAttnPlan_t plan = nullptr;
    if (seqparAttnPlanCreate(&plan, &desc, ranks[rank]) != seqparSuccess ||
        seqparAttnPlanPrepare(plan, nullptr, 0) != seqparSuccess) {
      return std::string(seqparAttnGetLastError());
    }
    std::vector<float> numbers(4 * 64), lse(16);
    alignas(256) static std::byte memory[2][8192];
    auto* const mine = memory[rank];
    seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
    args.q.data = numbers.data();
    args.k.data = numbers.data() + 64;
    args.v.data = numbers.data() + 128;
    args.out.data = numbers.data() + 192;
    args.lse = lse.data();
    std::string texts;
    for (void* const wrong :
         {static_cast<void*>(nullptr), static_cast<void*>(mine + 8), static_cast<void*>(numbers.data())}) {
      args.reserve = wrong;
      texts += seqparAttnForward(plan, &args, nullptr) == seqparInvalidArgument ? seqparAttnGetLastError() : "taken";
      texts += "\n";
    }
    args.reserve = mine;
    if (seqparAttnForward(plan, &args, nullptr) != seqparSuccess) texts += seqparAttnGetLastError();
    seqparAttnPlanDestroy(plan);
    return texts;
  });
  for (const auto& text : said) {
    CHECK_THAT(text, Catch::Contains("args->reserve is NULL, expected") &&
                         Catch::Contains("expected a multiple of 16") && !Catch::Contains("taken"));
  }
}

}  // namespace
