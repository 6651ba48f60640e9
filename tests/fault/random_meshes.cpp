// Random calls of meshes, rings and shifts of several tensors, ranges, and merges by heads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "call_buffer.h"
#include "random_calls.h"
#include "seqpar/exchange.h"
#include "seqpar/lse.h"
#include "seqpar/mesh.h"
#include "seqpar/ring.h"

namespace seqpar::test {
namespace {

constexpr int kMostTensors = 3;

/// The value of each byte of a rank's tensor.
char contents(int rank, int tensor) {
  return static_cast<char>(1 + rank * kMostTensors + tensor);
}

bool holds(const void* data, size_t bytes, char expected) {
  const auto* const first = static_cast<const char*>(data);
  return std::count(first, first + bytes, expected) == static_cast<long>(bytes);
}

/// The place of the tensors at `place` after `step` transfers in a ring of `ranks` places (seqpar/ring.h).
int sourcePlace(int place, int step, int ranks, int inner, int direction) {
  const int sign = direction == seqparForward ? -1 : 1;
  const auto shifted = [](int value, int by, int size) { return ((value + by) % size + size) % size; };
  const int window = shifted(place / inner, sign * (step / inner), ranks / inner);
  return window * inner + shifted(place % inner, sign * (step % inner), inner);
}

}  // namespace

int RandomCalls::divisor() {
  int divisor = 1 + below(ranks_);
  while (ranks_ % divisor != 0) divisor = divisor % ranks_ + 1;
  return divisor;
}

/// Several tensors, of different sizes on all ranks, in a single or a double ring.
seqparResult_t RandomCalls::unevenRing() {
  const int tensors = 1 + below(kMostTensors);
  std::vector<size_t> bytes(static_cast<size_t>(tensors * ranks_));
  for (size_t& one : bytes) one = below(5) == 0 ? 0 : length();
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.direction = below(2) == 0 ? seqparForward : seqparReverse;
  params.inner = divisor();
  params.unchanged = below(2);
  params.steps = 1 + below(ranks_);
  params.tensors = tensors;
  params.bytes = bytes.data();
  params.uneven = 1;
  seqparRing_t ring = nullptr;
  auto result = seqparRingCreate(&ring, &params, comm_);
  if (result != seqparSuccess) return result;
  for (int tensor = 0; tensor < tensors; ++tensor) {
    void* data = nullptr;
    size_t size = 0;
    seqparRingCurrent(ring, tensor, &data, &size);
    std::fill_n(static_cast<char*>(data), size, contents(rank_, tensor));
  }
  for (int step = 1; step <= params.steps; ++step) {
    result = seqparRingPost(ring, nullptr);
    if (result == seqparSuccess) result = seqparRingWait(ring, nullptr);
    if (result != seqparSuccess) break;
    const int source = sourcePlace(rank_, step, ranks_, params.inner, params.direction);
    for (int tensor = 0; tensor < tensors; ++tensor) {
      void* data = nullptr;
      size_t size = 0;
      seqparRingCurrent(ring, tensor, &data, &size);
      expect(size == bytes[static_cast<size_t>(source * tensors + tensor)] &&
             holds(data, size, contents(source, tensor)));
    }
  }
  seqparRingDestroy(ring);
  return result;
}

seqparResult_t RandomCalls::shift() {
  const auto tensors = static_cast<size_t>(1 + below(kMostTensors));
  const int distance = below(ranks_), to = (rank_ + distance) % ranks_, from = (rank_ + ranks_ - distance) % ranks_;
  std::vector<size_t> bytes;
  std::vector<std::vector<char>> sent, received;
  std::vector<const void*> sends;
  std::vector<void*> receives;
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    bytes.push_back(length());
    sent.emplace_back(bytes.back(), contents(rank_, static_cast<int>(tensor)));
    received.emplace_back(bytes.back(), '\0');
    sends.push_back(sent.back().data());
    receives.push_back(received.back().data());
  }
  seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
  params.sendPeer = to;
  params.receivePeer = from;
  params.sendTensors = params.receiveTensors = static_cast<int>(tensors);
  params.sendBuffers = sends.data();
  params.receiveBuffers = receives.data();
  params.sendBytes = params.receiveBytes = bytes.data();
  const auto result = seqparShift(&params, comm_, nullptr);
  if (result != seqparSuccess) return result;
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    expect(holds(received[tensor].data(), bytes[tensor], contents(from, static_cast<int>(tensor))));
  }
  return result;
}

/// Rank r's terms of each block are r plus the block's position.
seqparResult_t RandomCalls::meshSums(seqparMesh_t mesh, int axis, const std::vector<int>& group, int position) {
  std::vector<size_t> counts(group.size());
  size_t all = 0;
  for (size_t& count : counts) all += count = length();
  const auto memory = drawMemory();
  CallBuffer terms(memory, all, 0.0f), sums(memory, counts[static_cast<size_t>(position)], -1.0f);
  float* block = terms.begin();
  for (size_t member = 0; member < counts.size(); ++member) {
    block = std::fill_n(block, counts[member], static_cast<float>(rank_) + static_cast<float>(member));
  }
  const auto result =
      seqparMeshReduceScatter(axis, terms.data(), sums.data(), counts.data(), seqparFloat32, mesh, nullptr);
  if (result != seqparSuccess) return result;
  float expected = 0;
  for (const int member : group) expected += static_cast<float>(member + position);
  expect(std::all_of(sums.begin(), sums.end(), [&](float one) { return one == expected; }));
  return result;
}

/// Equal weights: the mean over the Q group.
seqparResult_t RandomCalls::meshOutputs(seqparMesh_t mesh, const std::vector<int>& group, int position) {
  constexpr size_t kHeads = 2, kDim = 8;
  std::vector<int64_t> tokens(group.size());
  int64_t all = 0;
  for (int64_t& one : tokens) all += one = below(300);
  const auto own = static_cast<size_t>(tokens[static_cast<size_t>(position)]), rows = static_cast<size_t>(all) * kHeads;
  const std::vector<float> o(rows * kDim + 1, static_cast<float>(rank_)), lse(rows + 1, 0.0f);
  std::vector<float> result(own * kHeads * kDim, NAN), resultLse(own * kHeads, NAN);
  result.reserve(1);  // addresses without tokens, too
  resultLse.reserve(1);
  seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
  params.o = o.data();
  params.lse = lse.data();
  params.result = result.data();
  params.resultLse = resultLse.data();
  params.tokens = tokens.data();
  params.heads = kHeads;
  params.dim = kDim;
  const auto end = seqparMeshReduceScatterO(&params, mesh, nullptr);
  if (end != seqparSuccess) return end;
  float mean = 0;
  for (const int member : group) mean += static_cast<float>(member) / static_cast<float>(group.size());
  expect(allNear(result, mean) && allNear(resultLse, std::log(static_cast<float>(group.size()))));
  return end;
}

/// The steps of a group, one by one: blocks of its members, then sums of ones.
seqparResult_t RandomCalls::meshSteps(seqparMesh_t mesh, int axis, const std::vector<int>& group, int position) {
  const auto members = static_cast<int>(group.size());
  const size_t elements = length();
  std::vector<float> block(elements, static_cast<float>(rank_)), next(elements);
  for (int step = 1; step < members; ++step) {
    const seqparMeshPart_t part = {block.data(), elements * sizeof(float), next.data(), elements * sizeof(float)};
    const auto result = seqparMeshReceive(axis, &part, 1, mesh, nullptr);
    if (result != seqparSuccess) return result;
    block.swap(next);
    const int source = group[static_cast<size_t>((position - step + members) % members)];
    expect(std::all_of(block.begin(), block.end(), [&](float one) { return one == static_cast<float>(source); }));
  }
  std::vector<float> sums, carry(elements);
  for (int step = 1; step <= members; ++step) {
    sums.assign(elements, 1.0f);
    const seqparMeshSum_t sum = {sums.data(), elements, carry.data(), elements};
    const auto result = seqparMeshReduceSum(axis, step % members, &sum, 1, seqparFloat32, seqparFloat32, mesh, nullptr);
    if (result != seqparSuccess) return result;
  }
  expect(std::all_of(sums.begin(), sums.end(), [&](float one) { return one == static_cast<float>(members); }));
  return seqparSuccess;
}

seqparResult_t RandomCalls::meshReductions() {
  const int a = divisor(), axis = below(2) == 0 ? seqparMeshAxisQ : seqparMeshAxisKv, kind = below(3);
  seqparMesh_t mesh = nullptr;
  auto result = seqparMeshCreate(&mesh, a, ranks_ / a, nullptr, comm_);
  if (result != seqparSuccess) return result;
  const auto groupOf = [&](int one, int& position) {
    std::vector<int> group(static_cast<size_t>(one == seqparMeshAxisQ ? a : ranks_ / a));
    seqparMeshGroup(mesh, one, group.data(), &position);
    return group;
  };
  int position = 0;
  if (kind == 0) {
    const auto group = groupOf(seqparMeshAxisQ, position);
    result = meshOutputs(mesh, group, position);
  } else {
    const auto group = groupOf(axis, position);
    result = kind == 1 ? meshSums(mesh, axis, group, position) : meshSteps(mesh, axis, group, position);
  }
  seqparMeshDestroy(mesh);
  return result;
}

/// Tokens contain their index; the sums of ones count a token's copies.
seqparResult_t RandomCalls::ranges() {
  const int64_t tokens = 1 + below(300), all = tokens * ranks_;
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.tokens = tokens;
  std::vector<int64_t> rangesOfRanks(static_cast<size_t>(ranks_));
  std::vector<seqparRange_t> ranges, mine;
  std::vector<float> copies(static_cast<size_t>(all), 0.0f);
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int64_t first = below(static_cast<int>(all)); first < all;) {
      const seqparRange_t range = {first, 1 + below(static_cast<int>(all - first))};
      ranges.push_back(range);
      ++rangesOfRanks[static_cast<size_t>(rank)];
      if (rank == rank_) mine.push_back(range);
      for (int64_t i = 0; i < range.count; ++i) ++copies[static_cast<size_t>(first + i)];
      first += range.count + below(100);
    }
  }
  std::vector<float> expected, shard(static_cast<size_t>(tokens));
  for (const auto& range : mine) {
    for (int64_t i = 0; i < range.count; ++i) expected.push_back(static_cast<float>(range.first + i));
  }
  for (size_t i = 0; i < shard.size(); ++i) shard[i] = static_cast<float>(rank_ * tokens) + static_cast<float>(i);
  std::vector<float> part(expected.size(), -1.0f);
  seqparRangesPlan_t plan = nullptr;
  auto result = seqparRangesPlanCreate(&plan, &shards, rangesOfRanks.data(), ranges.data(), comm_);
  if (result != seqparSuccess) return result;
  result = seqparGatherRanges(plan, shard.data(), part.data(), nullptr);
  if (result == seqparSuccess) expect(part == expected);
  part.assign(part.size(), 1.0f);
  shard.assign(shard.size(), 0.0f);
  if (result == seqparSuccess) result = seqparScatterRanges(plan, part.data(), shard.data(), nullptr);
  if (result == seqparSuccess) expect(std::equal(shard.begin(), shard.end(), copies.begin() + rank_ * tokens));
  seqparRangesPlanDestroy(plan);
  return result;
}

/// Equal weights: the mean over ranks.
seqparResult_t RandomCalls::lseByHeads() {
  constexpr int64_t kHeads = 5, kDim = 4;
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
  params.rows = 1 + below(small_ ? 10 : 300);
  params.heads = kHeads;
  params.headDim = kDim;
  int64_t first = 0, count = 0;
  seqparHeadsOfMember(kHeads, 0, ranks_, rank_, &first, &count);
  const auto rows = static_cast<size_t>(params.rows), own = rows * static_cast<size_t>(count);
  const std::vector<float> out(rows * kHeads * kDim, static_cast<float>(rank_)), lse(rows * kHeads, 0.0f);
  std::vector<float> outShard(own * kDim, NAN), lseShard(own, NAN);
  const auto result =
      seqparReduceScatterLseByHeads(out.data(), lse.data(), outShard.data(), lseShard.data(), &params, comm_, nullptr);
  if (result != seqparSuccess) return result;
  const float mean = static_cast<float>(ranks_ - 1) / 2;
  expect(allNear(outShard, mean) && allNear(lseShard, std::log(static_cast<float>(ranks_))));
  return result;
}

}  // namespace seqpar::test
