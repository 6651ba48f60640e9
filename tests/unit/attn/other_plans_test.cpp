// Ranks that run different passes, or passes of different plans.
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "attn/plan/registry.h"
#include "rank_threads.h"
#include "seqpar/short_conv.h"
#include "softmax_run.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 4;

/// A small problem for an algorithm.
seqparAttnDesc_t descOf(const seqpar::attn::AlgorithmRow& row) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = row.softmax ? seqparAttnSoftmax : seqparAttnSum;
  desc.algorithm = row.id;
  desc.tokens = 32;
  desc.heads = 4;
  desc.headDim = 4;
  desc.mask = row.softmax ? seqparAttnCausal : seqparAttnFull;
  return desc;
}

/// A plan of four ranks with arrays for both passes, all values 1.
class SmallPlan {
 public:
  SmallPlan(const seqparAttnDesc_t& desc, seqparComm_t comm) {
    seqparAttnPlanCreate(&plan_, &desc, comm);
    said_ = check(seqparAttnPlanPrepare(plan_, nullptr, 0), "prepare");
    arrays_.assign(9, std::vector<float>(static_cast<size_t>(desc.tokens * desc.heads * desc.headDim), 1.0f));
    states_.assign(2, std::vector<float>(static_cast<size_t>(desc.heads * desc.headDim * desc.headDim), 1.0f));
  }
  SmallPlan(const SmallPlan&) = delete;
  SmallPlan& operator=(const SmallPlan&) = delete;
  ~SmallPlan() { seqparAttnPlanDestroy(plan_); }

  const std::string& said() const { return said_; }
  seqparResult_t forward(void* stream) {
    seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
    f.q.data = arrays_[0].data();
    f.k.data = arrays_[1].data();
    f.v.data = arrays_[2].data();
    f.out.data = arrays_[3].data();
    f.lse = arrays_[4].data();
    f.saved = states_[0].data();
    return seqparAttnForward(plan_, &f, stream);
  }
  seqparResult_t backward(void* stream) {
    seqparAttnBackwardArgs_t b = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    b.q.data = arrays_[0].data();
    b.k.data = arrays_[1].data();
    b.v.data = arrays_[2].data();
    b.out.data = arrays_[3].data();
    b.lse = arrays_[4].data();
    b.saved = states_[0].data();
    b.dOut.data = arrays_[5].data();
    b.dq.data = arrays_[6].data();
    b.dk.data = arrays_[7].data();
    b.dv.data = arrays_[8].data();
    return seqparAttnBackward(plan_, &b, stream);
  }

 private:
  seqparAttnPlan_t plan_ = nullptr;
  std::string said_;
  std::vector<std::vector<float>> arrays_, states_;
};

TEST_CASE("SEQPAR_CHECK: ranks in different passes are refused, and the plan stays usable", "[faults]") {
  const RankThreads group = makeRanks(kRanks, true);
  for (const auto& row : seqpar::attn::algorithms()) {
    for (const bool onStream : {false, true}) {
      const auto said = group.each([&](int rank) -> std::string {
        SmallPlan plan(descOf(row), group[rank]);
        if (!plan.said().empty()) return plan.said();
        seqparStream_t stream = nullptr;
        if (onStream) seqparStreamCreate(&stream);
        auto result = rank == 1 ? plan.backward(stream) : plan.forward(stream);
        if (onStream && result == seqparSuccess) result = seqparStreamSynchronize(stream);
        const std::string text = seqparGetLastError(group[rank]);
        std::string wrong;
        if (result != seqparInvalidUsage) wrong = "result " + std::to_string(result) + ": ";
        const auto difference = "rank 1 has called seqparAttnBackward, rank 0 has seqparAttnForward";
        if (text.find(difference) == std::string::npos) wrong += text;
        for (const auto next : {&SmallPlan::forward, &SmallPlan::backward}) {
          result = (plan.*next)(stream);
          if (onStream && result == seqparSuccess) result = seqparStreamSynchronize(stream);
          if (result != seqparSuccess) wrong += std::string("; then ") + seqparGetLastError(group[rank]);
        }
        if (onStream) seqparStreamDestroy(stream);
        return wrong;
      });
      CAPTURE(row.name, onStream);
      for (const auto& text : said) CHECK(text == "");
    }
  }
}

TEST_CASE("SEQPAR_CHECK: a pass of another plan is refused", "[faults]") {
  const RankThreads group = makeRanks(kRanks, true);
  const auto said = group.each([&](int rank) -> std::string {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.tokens = 32;
    desc.heads = 4;
    desc.headDim = 4;
    SmallPlan one(desc, group[rank]);
    desc.windowLeft = 3;
    SmallPlan other(desc, group[rank]);
    const auto result = (rank == 2 ? other : one).forward(nullptr);
    const std::string text = seqparAttnGetLastError();
    if (result == seqparInvalidUsage && text.find("digest of the plan") != std::string::npos) return "";
    return std::to_string(result) + ": " + text;
  });
  for (const auto& text : said) CHECK(text == "");
}

TEST_CASE("Without argument checks, data of another plan ends the communicator", "[faults]") {
  for (const auto& row : seqpar::attn::algorithms()) {
    if (row.id == seqparAttnLocal) continue;  // ranks exchange nothing
    const RankThreads group = makeRanks(kRanks, false);
    std::barrier ready(kRanks);  // a rank that fails ends the others' passes
    const auto said = group.each([&](int rank) -> std::string {
      auto desc = descOf(row);
      SmallPlan one(desc, group[rank]);
      desc.scale = 0.25f;  // changes no message's size
      SmallPlan other(desc, group[rank]);
      auto result = one.forward(nullptr);
      if (result == seqparSuccess) result = other.forward(nullptr);
      ready.arrive_and_wait();
      if (result != seqparSuccess) return std::string("equal plans: ") + seqparAttnGetLastError();
      result = (rank == 2 ? other : one).forward(nullptr);
      if (result == seqparSuccess) result = seqparCommBarrier(group[rank]);
      const std::string text = seqparGetLastError(group[rank]);
      return result != seqparSuccess && text.find("the ranks disagree about") != std::string::npos ? "" : "no: " + text;
    });
    CAPTURE(row.name);
    for (const auto& text : said) CHECK(text == "");
  }
}

/// A short convolution of ones on four ranks. Sizes, and so messages, do not depend on `silu` and `bounds`.
class SmallConv {
 public:
  SmallConv(int silu, const std::vector<int64_t>& bounds, seqparComm_t comm) {
    seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
    desc.channels = 2;
    desc.tokens = 32;
    desc.silu = silu;
    desc.sequences = static_cast<int>(bounds.size()) - 1;
    desc.cuSeqlens = bounds.data();
    said_ = check(seqparShortConvCreate(&conv_, &desc, comm), "create");
    arrays_.assign(7, std::vector<float>(16, 1.0f));
  }
  SmallConv(const SmallConv&) = delete;
  SmallConv& operator=(const SmallConv&) = delete;
  ~SmallConv() { seqparShortConvDestroy(conv_); }

  const std::string& said() const { return said_; }
  seqparResult_t pass(bool backward) {
    auto& a = arrays_;
    if (!backward) return seqparShortConvForward(conv_, a[0].data(), a[1].data(), nullptr, a[2].data(), nullptr);
    seqparShortConvBackwardArgs_t args = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
    args.x = a[0].data();
    args.weight = a[1].data();
    args.dy = a[3].data();
    args.dx = a[4].data();
    args.dWeight = a[5].data();
    return seqparShortConvBackward(conv_, &args, nullptr);
  }

 private:
  seqparShortConv_t conv_ = nullptr;
  std::string said_;
  std::vector<std::vector<float>> arrays_;
};

TEST_CASE("Without argument checks, halos of another short convolution end the communicator", "[faults]") {
  for (const bool backward : {false, true}) {
    for (const bool packed : {false, true}) {
      const RankThreads group = makeRanks(kRanks, false);
      std::barrier ready(kRanks);  // a rank that fails ends the others' passes
      const auto said = group.each([&](int rank) -> std::string {
        SmallConv one(0, {0, 5, 32}, group[rank]);
        SmallConv other(packed ? 0 : 1, {0, packed ? 6 : 5, 32}, group[rank]);
        if (!one.said().empty() || !other.said().empty()) return one.said() + other.said();
        auto result = one.pass(backward);
        if (result == seqparSuccess) result = other.pass(backward);
        ready.arrive_and_wait();
        if (result != seqparSuccess) return std::string("equal convolutions: ") + seqparAttnGetLastError();
        result = (rank == 2 ? other : one).pass(backward);
        if (result == seqparSuccess) result = seqparCommBarrier(group[rank]);
        const std::string text = seqparGetLastError(group[rank]);
        return result != seqparSuccess && text.find("the ranks disagree about") != std::string::npos ? ""
                                                                                                     : "no: " + text;
      });
      CAPTURE(backward, packed);
      for (const auto& text : said) CHECK(text == "");
    }
  }
}

}  // namespace
