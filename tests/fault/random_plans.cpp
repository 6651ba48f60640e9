// Random calls of objects and rarer collectives.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "random_calls.h"
#include "seqpar/attn.h"
#include "seqpar/attn_plan.h"
#include "seqpar/exchange.h"
#include "seqpar/layout.h"
#include "seqpar/lse.h"
#include "seqpar/short_conv.h"
#include "seqpar/shrink.h"
#include "seqpar/stream.h"

namespace seqpar::test {
namespace {

/// Ends an object also if the caller's memory runs out.
template <typename Handle, seqparResult_t (*kEnd)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) kEnd(handle);
  }
  Handle handle = nullptr;
};

}  // namespace

/// Queries, keys and values of 1, without decay: out of token t is t + 1, and the gradient of its value is the number
/// of tokens from it to the end.
seqparResult_t RandomCalls::linear() {
  static constexpr int kAlgorithms[] = {seqparAttnAuto, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
  constexpr int64_t kTokens = 64;
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = seqparAttnSum;
  desc.algorithm = kAlgorithms[below(std::size(kAlgorithms))];
  desc.tokens = kTokens * ranks_;
  desc.heads = desc.headDim = 1;
  desc.scale = 1;
  Owned<seqparAttnPlan_t, seqparAttnPlanDestroy> plan;
  auto result = seqparAttnPlanCreate(&plan.handle, &desc, comm_);
  if (result == seqparSuccess) result = seqparAttnPlanPrepare(plan.handle, nullptr, 0);
  std::vector<float> ones(kTokens, 1.0f), out(kTokens), dq(kTokens), dk(kTokens), dv(kTokens);
  float saved = 0;
  if (result == seqparSuccess) {
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q.data = forward.k.data = forward.v.data = ones.data();
    forward.out.data = out.data();
    forward.saved = &saved;
    result = seqparAttnForward(plan.handle, &forward, nullptr);
  }
  if (result == seqparSuccess) {
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q.data = backward.k.data = backward.v.data = backward.dOut.data = ones.data();
    backward.saved = &saved;
    backward.dq.data = dq.data();
    backward.dk.data = dk.data();
    backward.dv.data = dv.data();
    result = seqparAttnBackward(plan.handle, &backward, nullptr);
  }
  if (result != seqparSuccess) return result;
  bool right = true;
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t global = rank_ * kTokens + t;
    right = right && out[static_cast<size_t>(t)] == static_cast<float>(global + 1) &&
            dv[static_cast<size_t>(t)] == static_cast<float>(kTokens * ranks_ - global);
  }
  expect(right);
  return result;
}

/// A kernel of ones: each output is the number of tokens up to the width.
seqparResult_t RandomCalls::shortConv() {
  constexpr int64_t kTokens = 50, kChannels = 3;
  constexpr int kWidth = 4;
  seqparShortConvDesc_t desc = SEQPAR_SHORT_CONV_INITIALIZER;
  desc.tokens = kTokens * ranks_;
  desc.channels = kChannels;
  desc.width = kWidth;
  desc.silu = 0;
  Owned<seqparShortConv_t, seqparShortConvDestroy> conv;
  auto result = seqparShortConvCreate(&conv.handle, &desc, comm_);
  if (result != seqparSuccess) return result;
  const std::vector<float> x(kTokens * kChannels, 1.0f), weight(kChannels * kWidth, 1.0f);
  std::vector<float> y(x.size(), NAN);
  result = seqparShortConvForward(conv.handle, x.data(), weight.data(), nullptr, y.data(), nullptr);
  if (result != seqparSuccess) return result;
  bool right = true;
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t global = rank_ * kTokens + static_cast<int64_t>(i) / kChannels;
    right = right && y[i] == static_cast<float>(std::min<int64_t>(global + 1, kWidth));
  }
  expect(right);
  return result;
}

/// Tokens contain their index: contiguous to zigzag.
seqparResult_t RandomCalls::redistribute() {
  seqparLayout_t from = SEQPAR_LAYOUT_INITIALIZER, to = SEQPAR_LAYOUT_INITIALIZER;
  from.ranks = to.ranks = ranks_;
  from.tokens = to.tokens = 1 + below(5000);
  from.kind = seqparContiguous;
  to.kind = seqparZigzag;
  int64_t mine = 0, later = 0;
  seqparLayoutLocalLength(&from, rank_, &mine);
  seqparLayoutLocalLength(&to, rank_, &later);
  std::vector<int64_t> send(static_cast<size_t>(mine) + 1), receive(static_cast<size_t>(later) + 1, -1);
  std::vector<int64_t> expected(static_cast<size_t>(later) + 1);
  seqparLayoutGlobals(&from, rank_, send.data());
  seqparLayoutGlobals(&to, rank_, expected.data());
  const int64_t rowBytes = sizeof(int64_t);
  Owned<seqparRedistributePlan_t, seqparRedistributePlanDestroy> plan;
  auto result = seqparRedistributePlanCreate(&plan.handle, &from, &to, 1, nullptr, &rowBytes, comm_);
  if (result != seqparSuccess) return result;
  const void* const source = send.data();
  void* const target = receive.data();
  result = seqparRedistribute(plan.handle, &source, &target, nullptr);
  if (result != seqparSuccess) return result;
  expect(std::equal(receive.begin(), receive.begin() + later, expected.begin()));
  return result;
}

/// To heads and back.
seqparResult_t RandomCalls::heads() {
  constexpr int64_t kTokens = 40, kHeads = 6, kDim = 8;
  seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
  shards.heads = kHeads;
  shards.headDim = kDim;
  shards.tokens = kTokens;
  int64_t first = 0, count = 0;
  seqparHeadsOfMember(kHeads, 0, ranks_, rank_, &first, &count);
  std::vector<float> sequence(kTokens * kHeads * kDim), back(sequence.size(), -1.0f);
  std::vector<float> head(static_cast<size_t>(kTokens * ranks_ * count * kDim), -1.0f);
  const auto value = [](int64_t token, int64_t one) { return static_cast<float>(token * kHeads + one); };
  for (size_t i = 0; i < sequence.size(); ++i) {
    const auto at = static_cast<int64_t>(i) / kDim;
    sequence[i] = value(rank_ * kTokens + at / kHeads, at % kHeads);
  }
  auto result = seqparSequenceToHeads(sequence.data(), head.data(), &shards, comm_, nullptr);
  if (result != seqparSuccess) return result;
  bool right = true;
  for (size_t i = 0; i < head.size(); ++i) {
    const auto at = static_cast<int64_t>(i) / kDim;
    right = right && head[i] == value(at / count, first + at % count);
  }
  expect(right);
  result = seqparHeadsToSequence(head.data(), back.data(), &shards, comm_, nullptr);
  if (result == seqparSuccess) expect(back == sequence);
  return result;
}

/// Equal weights: the mean over ranks.
seqparResult_t RandomCalls::lse() {
  constexpr size_t kHeads = 2, kDim = 16;
  const auto rows = static_cast<size_t>(below(small_ ? 10 : 300)) + 1;
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
  params.rows = static_cast<int64_t>(rows);
  params.heads = kHeads;
  params.headDim = kDim;
  const std::vector<float> out(rows * kHeads * kDim, static_cast<float>(rank_)), weights(rows * kHeads, 0.0f);
  std::vector<float> outAll(out.size(), NAN), lseAll(weights.size(), NAN);
  const auto result =
      seqparAllReduceLse(out.data(), weights.data(), outAll.data(), lseAll.data(), &params, comm_, nullptr);
  if (result != seqparSuccess) return result;
  const float mean = static_cast<float>(ranks_ - 1) / 2;
  expect(allNear(outAll, mean) && allNear(lseAll, std::log(static_cast<float>(ranks_))));
  return result;
}

seqparResult_t RandomCalls::halo() {
  const int64_t tokens = 1 + below(small_ ? 30 : 300), width = 1 + below(static_cast<int>(tokens));
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.outer = 1;
  shards.tokens = tokens;
  shards.inner = 5;
  seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
  halo.left = width;
  const std::vector<float> shard(static_cast<size_t>(5 * tokens), static_cast<float>(rank_ + 1));
  std::vector<float> left(static_cast<size_t>(5 * width), -1.0f);
  const auto result = seqparHaloExchange(shard.data(), left.data(), nullptr, &halo, &shards, comm_, nullptr);
  if (result != seqparSuccess) return result;
  expect(std::all_of(left.begin(), left.end(), [&](float x) { return x == static_cast<float>(rank_); }));
  return result;
}

/// All-gathers on a stream, in flight at once.
seqparResult_t RandomCalls::onStream() {
  constexpr size_t kCalls = 4;
  const auto elements = static_cast<size_t>(below(5000)) + 1;
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.outer = shards.tokens = 1;
  shards.inner = static_cast<int64_t>(elements);
  const std::vector<float> mine(elements, static_cast<float>(rank_));
  std::vector<std::vector<float>> whole(kCalls, std::vector<float>(elements * static_cast<size_t>(ranks_), -1.0f));
  Owned<seqparStream_t, seqparStreamDestroy> stream;
  auto result = seqparStreamCreate(&stream.handle);
  for (size_t i = 0; i < kCalls && result == seqparSuccess; ++i) {
    result = seqparAllGather(mine.data(), whole[i].data(), &shards, comm_, stream.handle);
  }
  if (stream.handle != nullptr) {
    const auto end = seqparStreamSynchronize(stream.handle);
    if (result == seqparSuccess) result = end;
  }
  if (result != seqparSuccess) return result;
  bool right = true;
  for (const auto& one : whole) {
    for (size_t i = 0; i < one.size(); ++i) {
      const size_t rank = i / elements;
      right = right && one[i] == static_cast<float>(rank);
    }
  }
  expect(right);
  return result;
}

/// A sum of ones on a part of the ranks.
seqparResult_t RandomCalls::split() {
  const int colors = 1 + below(2);
  seqparComm_t part = nullptr;
  auto result = seqparCommSplit(comm_, rank_ % colors, 0, &part, nullptr);
  if (result != seqparSuccess) return result;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = params.dk = params.dv = 1;
  const float one = 1;
  float before = -1;
  result = seqparAllScan(&one, nullptr, nullptr, &before, nullptr, &params, part, nullptr);
  if (result == seqparSuccess) {
    const int place = rank_ / colors;
    expect(before == static_cast<float>(place));
    result = seqparCommDestroy(part);
    if (result == seqparSuccess) return result;
  } else {
    seqparCommAbort(part);
  }
  // The same fault ends the parent, unless it is one of this process.
  auto parent = seqparSuccess;
  for (int wait = 0; wait < 2000 && parent == seqparSuccess; ++wait) {
    usleep(1000);
    if (seqparCommGetAsyncError(comm_, &parent) != seqparSuccess) break;
  }
  if (parent == seqparSuccess) seqparCommRevoke(comm_);
  return seqparCommBarrier(comm_);  // its error names a rank of the parent
}

}  // namespace seqpar::test
