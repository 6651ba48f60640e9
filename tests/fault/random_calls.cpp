#include "random_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "call_buffer.h"
#include "seqpar/attn.h"
#include "seqpar/attn_plan.h"
#include "seqpar/exchange.h"
#include "seqpar/mesh.h"
#include "seqpar/ring.h"

namespace seqpar::test {
namespace {

constexpr size_t kLengths[] = {1, 63, 1000, 4096, 30000, 150000};

bool all(const CallBuffer<float>& values, float expected) {
  return std::all_of(values.begin(), values.end(), [&](float one) { return one == expected; });
}

/// The rank with element `i` in its shard.
float shardOf(size_t i, size_t elements) {
  const size_t rank = i / elements;
  return static_cast<float>(rank);
}

seqparShards_t shardsOf(size_t elements) {
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.outer = shards.tokens = 1;
  shards.inner = static_cast<int64_t>(elements);
  return shards;
}

}  // namespace

bool allNear(const std::vector<float>& values, float expected, float tolerance) {
  return std::all_of(values.begin(), values.end(), [&](float one) { return std::abs(one - expected) < tolerance; });
}

RandomCalls::RandomCalls(seqparComm_t comm, uint64_t seed) : comm_(comm), random_(seed) {
  seqparCommUserRank(comm, &rank_);
  seqparCommCount(comm, &ranks_);
}

seqparResult_t RandomCalls::next(Kind kind) {
  struct Row {
    const char* name = "";
    seqparResult_t (RandomCalls::*run)() = nullptr;
    Kind kind = Kind::Any;
    bool plans = false;
  };
  static constexpr std::array kRows{Row{"scan", &RandomCalls::scan, Kind::Small},
                                    Row{"send and receive", &RandomCalls::sendReceive, Kind::Small},
                                    Row{"all-gather", &RandomCalls::allGather, Kind::Small},
                                    Row{"reduce-scatter", &RandomCalls::reduceScatter, Kind::Small},
                                    Row{"ring", &RandomCalls::ring, Kind::Objects},
                                    Row{"mesh", &RandomCalls::mesh, Kind::Objects},
                                    Row{"attention", &RandomCalls::attention, Kind::Plan, true},
                                    Row{"linear attention", &RandomCalls::linear, Kind::Plan, true},
                                    Row{"short convolution", &RandomCalls::shortConv, Kind::Plan, true},
                                    Row{"redistribution", &RandomCalls::redistribute, Kind::Plan},
                                    Row{"heads", &RandomCalls::heads, Kind::Small},
                                    Row{"merge", &RandomCalls::lse, Kind::Small},
                                    Row{"halo", &RandomCalls::halo, Kind::Small},
                                    Row{"stream", &RandomCalls::onStream, Kind::Objects},
                                    Row{"split", &RandomCalls::split, Kind::Objects},
                                    Row{"uneven ring", &RandomCalls::unevenRing, Kind::Objects},
                                    Row{"shift", &RandomCalls::shift, Kind::Small},
                                    Row{"reductions of a mesh", &RandomCalls::meshReductions, Kind::Objects},
                                    Row{"ranges", &RandomCalls::ranges, Kind::Plan},
                                    Row{"merge by heads", &RandomCalls::lseByHeads, Kind::Small}};
  const auto fits = [kind](const Row& row) { return kind == Kind::Any || row.kind == kind; };
  auto drawn = below(static_cast<int>(std::count_if(kRows.begin(), kRows.end(), fits)));
  const Row& row = *std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) { return fits(one) && drawn-- == 0; });
  latest_ = row.name;
  plans_ = row.plans;
  small_ = kind == Kind::Small;
  const auto result = (this->*row.run)();
  if (result == seqparSuccess) ++succeeded_;
  return result;
}

/// Of a message, in elements.
size_t RandomCalls::length() {
  constexpr int kSmall = 3;  // of them
  return kLengths[below(small_ ? kSmall : static_cast<int>(std::size(kLengths)))];
}

const char* RandomCalls::error() const {
  return plans_ ? seqparAttnGetLastError() : seqparGetLastError(nullptr);
}

seqparResult_t RandomCalls::scan() {
  const size_t elements = length();
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = params.dk = 1;
  params.dv = static_cast<int64_t>(elements);
  params.algorithm = below(SEQPAR_SCAN_ALGORITHMS + 1);
  params.direction = below(2) == 0 ? seqparForward : seqparReverse;
  const int before = params.direction == seqparForward ? rank_ : ranks_ - 1 - rank_;
  const auto memory = drawMemory();
  const CallBuffer state(memory, elements, 1.0f);
  CallBuffer prefix(memory, elements, -1.0f), total(memory, elements, -1.0f);
  const auto result =
      seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), total.data(), &params, comm_, nullptr);
  if (result != seqparSuccess) return result;
  expect(all(prefix, static_cast<float>(before)) && all(total, static_cast<float>(before + 1)));
  return result;
}

seqparResult_t RandomCalls::sendReceive() {
  const size_t bytes = 4 * length();
  const int distance = 1 + below(ranks_);
  const int to = (rank_ + distance) % ranks_, from = (rank_ + ranks_ - distance % ranks_) % ranks_;
  const auto memory = drawMemory();
  const CallBuffer out(memory, bytes, static_cast<char>(rank_ + 1));
  CallBuffer in(memory, bytes, '\0');
  const auto result = seqparSendRecv(out.data(), bytes, to, in.data(), bytes, from, comm_, nullptr);
  if (result != seqparSuccess) return result;
  expect(std::count(in.begin(), in.end(), static_cast<char>(from + 1)) == static_cast<long>(bytes));
  return result;
}

seqparResult_t RandomCalls::allGather() {
  const size_t elements = length();
  const auto shards = shardsOf(elements);
  const auto memory = drawMemory();
  const CallBuffer mine(memory, elements, static_cast<float>(rank_));
  CallBuffer whole(memory, elements * static_cast<size_t>(ranks_), -1.0f);
  const auto result = seqparAllGather(mine.data(), whole.data(), &shards, comm_, nullptr);
  if (result != seqparSuccess) return result;
  bool right = true;
  for (size_t i = 0; i < whole.size(); ++i) right = right && whole[i] == shardOf(i, elements);
  expect(right);
  return result;
}

seqparResult_t RandomCalls::reduceScatter() {
  const size_t elements = length();
  const auto shards = shardsOf(elements);
  const auto memory = drawMemory();
  CallBuffer whole(memory, elements * static_cast<size_t>(ranks_), 0.0f), mine(memory, elements, -1.0f);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = shardOf(i, elements) + 1;
  const auto result = seqparReduceScatter(whole.data(), mine.data(), &shards, comm_, nullptr);
  if (result != seqparSuccess) return result;
  expect(all(mine, static_cast<float>((rank_ + 1) * ranks_)));
  return result;
}

seqparResult_t RandomCalls::ring() {
  const size_t bytes = 4 * length();
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.direction = below(2) == 0 ? seqparForward : seqparReverse;
  params.steps = ranks_;
  params.tensors = 1;
  params.bytes = &bytes;
  params.keepHome = below(2);
  const int sign = params.direction == seqparForward ? ranks_ - 1 : 1;
  seqparRing_t ring = nullptr;
  auto result = seqparRingCreate(&ring, &params, comm_);
  if (result != seqparSuccess) return result;
  void* tensor = nullptr;
  seqparRingCurrent(ring, 0, &tensor, nullptr);
  std::fill_n(static_cast<char*>(tensor), bytes, static_cast<char>(rank_ + 1));
  for (int step = 1; step <= ranks_ && result == seqparSuccess; ++step) {
    result = seqparRingPost(ring, nullptr);
    if (result == seqparSuccess) result = seqparRingWait(ring, nullptr);
    if (result != seqparSuccess) break;
    seqparRingCurrent(ring, 0, &tensor, nullptr);
    const auto* data = static_cast<const char*>(tensor);
    expect(std::count(data, data + bytes, static_cast<char>((rank_ + sign * step) % ranks_ + 1)) ==
           static_cast<long>(bytes));
  }
  seqparRingDestroy(ring);
  return result;
}

seqparResult_t RandomCalls::mesh() {
  const int a = divisor();
  const int axis = below(2) == 0 ? seqparMeshAxisQ : seqparMeshAxisKv;
  const size_t elements = length();
  seqparMesh_t mesh = nullptr;
  auto result = seqparMeshCreate(&mesh, a, ranks_ / a, nullptr, comm_);
  if (result != seqparSuccess) return result;
  const auto members = static_cast<size_t>(axis == seqparMeshAxisQ ? a : ranks_ / a);
  std::vector<int> group(members);
  seqparMeshGroup(mesh, axis, group.data(), nullptr);
  const std::vector<size_t> bytes(members, elements * sizeof(float));
  const auto memory = drawMemory();
  const CallBuffer mine(memory, elements, static_cast<float>(rank_));
  CallBuffer blocks(memory, elements * members, -1.0f);
  result = seqparMeshAllGather(axis, mine.data(), blocks.data(), bytes.data(), mesh, nullptr);
  if (result == seqparSuccess) {
    bool right = true;
    for (size_t i = 0; i < blocks.size(); ++i) right = right && blocks[i] == static_cast<float>(group[i / elements]);
    expect(right);
  }
  seqparMeshDestroy(mesh);
  return result;
}

/// All scores are equal: outputs are the mean of values of 2.
seqparResult_t RandomCalls::attention() {
  static constexpr int kAlgorithms[] = {seqparAttnRing, seqparAttnRingPassQ, seqparAttnAllGatherKv, seqparAttnMesh,
                                        seqparAttnAuto};
  constexpr int64_t kTokens = 32, kHeads = 2, kDim = 16;
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.algorithm = kAlgorithms[below(std::size(kAlgorithms))];
  desc.tokens = kTokens * ranks_;
  desc.heads = kHeads;
  desc.headDim = kDim;
  seqparAttnPlan_t plan = nullptr;
  auto result = seqparAttnPlanCreate(&plan, &desc, comm_);
  if (result == seqparSuccess) result = seqparAttnPlanPrepare(plan, nullptr, 0);
  constexpr size_t kElements = kTokens * kHeads * kDim;
  std::vector<float> q(kElements, 0.0f), v(kElements, 2.0f), out(kElements, NAN), lse(kTokens * kHeads, NAN);
  if (result == seqparSuccess) {
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q.data = forward.k.data = q.data();
    forward.v.data = v.data();
    forward.out.data = out.data();
    forward.lse = lse.data();
    result = seqparAttnForward(plan, &forward, nullptr);
  }
  if (result == seqparSuccess) {
    expect(allNear(out, 2, 1e-3f) && allNear(lse, std::log(static_cast<float>(desc.tokens)), 1e-4f));
  }
  seqparAttnPlanDestroy(plan);
  return result;
}

}  // namespace seqpar::test
