#include "attn/softmax/rotation.h"

#include "attn/boundary.h"
#include "attn/problem/needed.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

bool sees(const Problem& problem, int queryRank, int keyRank) {
  return problem.scores(queryRank, keyRank) > 0;
}

}  // namespace

int RingOrder::moved(int from, int hops) const {
  if (direction == seqparReverse) hops = -hops;
  const auto modulo = [](int a, int n) {
    const int rest = a % n;
    return rest < 0 ? rest + n : rest;
  };
  if (inner == ranks) return modulo(from + hops, ranks);
  const int sign = hops < 0 ? -1 : 1, count = hops * sign;
  const int windows = ranks / inner;
  const int window = modulo(from / inner + sign * (count / inner), windows);
  return window * inner + modulo(from % inner + sign * (count % inner), inner);
}

RingOrder ringOrder(const Problem& problem, int inner, bool queries) {
  RingOrder order{problem.ranks(), problem.rank(), inner, queries ? seqparReverse : seqparForward, 0, queries};
  for (int step = problem.ranks() - 1; step > 0 && order.steps == 0; --step) {
    for (int rank = 0; rank < problem.ranks() && order.steps == 0; ++rank) {
      const int source = order.sourceOf(rank, step);
      if (queries ? sees(problem, source, rank) : sees(problem, rank, source)) order.steps = step;
    }
  }
  return order;
}

Rotation::Rotation(const Problem& problem, Exec& exec, const RingOrder& order, std::vector<RingTensor> inputs,
                   std::vector<RingTensor> sums)
    : problem_(problem),
      exec_(exec),
      order_(order),
      ranges_(problem.seenByOthers(order.queries)),
      inputs_(std::move(inputs)),
      sums_(std::move(sums)),
      home_(sums_.size(), nullptr),
      sum_(sums_.size(), nullptr),
      current_(order.rank) {}

int64_t Rotation::tokens(int rank) const {
  return tokensOf(ranges(rank));
}

std::vector<Rectangle> Rotation::rectangles(int step) const {
  const auto &queries = problem_.queries, &keys = problem_.keys;
  const int own = order_.rank, source = order_.source(step);
  if (step == 0) return problem_.rectangles(own, own);
  const auto& rotating = order_.queries ? queries : keys;
  const auto runs = runsOf(rotating.runsOf(source), ranges(source));
  return order_.queries ? rectanglesOf(runs, keys.runsOf(own), problem_.visibility())
                        : rectanglesOf(queries.runsOf(own), runs, problem_.visibility());
}

size_t Rotation::bytes(const RingTensor& t, int rank) const {
  const int64_t rows = problem_.desc.batch * t.heads * tokens(rank);
  return t.dim == 0 ? static_cast<size_t>(rows) * sizeof(float) : static_cast<size_t>(rows * t.dim) * bytesOf(t.type);
}

void Rotation::carve(Arena& arena) {
  if (order_.steps == 0 || homeIsNext()) return;
  for (size_t s = 0; s < sums_.size(); ++s) {
    home_[s] = arena.take(bytes(sums_[s], order_.rank));
    if (order_.steps == order_.firstSum()) sum_[s] = arena.take(bytes(sums_[s], order_.source(order_.steps)));
  }
}

void Rotation::open() {
  if (order_.steps == 0) return;
  inputRing_ = makeRing(inputs_, 0, order_.steps);
  const int hops = order_.steps - order_.firstSum() + (homeIsNext() ? 1 : 0);
  if (!sums_.empty() && hops > 0) sumRing_ = makeRing(sums_, order_.firstSum(), hops);
}

/// `firstStep`: the places of a ring that starts later hold the tensors of that step.
Rotation::Ring Rotation::makeRing(const std::vector<RingTensor>& ringTensors, int firstStep, int steps) const {
  std::vector<size_t> sizes;
  for (int rank = 0; rank < order_.ranks; ++rank) {
    for (const auto& t : ringTensors) sizes.push_back(bytes(t, order_.sourceOf(rank, firstStep)));
  }
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.direction = order_.direction;
  if (!problem_.members.empty()) params.ranks = problem_.members.data();
  params.nranks = order_.ranks;
  params.inner = order_.inner == order_.ranks ? 0 : order_.inner;
  params.unchanged = &ringTensors == &inputs_ ? 1 : 0;
  params.steps = steps;
  params.tensors = static_cast<int>(ringTensors.size());
  params.bytes = sizes.data();
  params.uneven = 1;
  seqparRing_t ring = nullptr;
  require(seqparRingCreate(&ring, &params, problem_.comm), kCaller, problem_.comm);
  return {ring, &seqparRingDestroy};
}

void* Rotation::pointer(seqparRing_t ring, const Buffers* buffers, int index) const {
  if (ring == nullptr) return buffers == nullptr ? nullptr : (*buffers)[static_cast<size_t>(index)];
  void* data = nullptr;
  require(seqparRingCurrent(ring, index, &data, nullptr), kCaller, problem_.comm);
  return data;
}

Tensor Rotation::tensorOf(const RingTensor& t, void* data, int rank) const {
  return denseTensor(data, t.type, problem_.desc.batch, tokens(rank), t.heads, t.dim);
}

Rows Rotation::rowsOf(const RingTensor& t, void* data, int rank) const {
  return denseRows(static_cast<float*>(data), problem_.desc.batch, t.heads, tokens(rank));
}

Tensor Rotation::tensorAt(const std::vector<RingTensor>& ringTensors, seqparRing_t ring, const Buffers* buffers,
                          int index, int rank) const {
  return tensorOf(ringTensors[static_cast<size_t>(index)], pointer(ring, buffers, index), rank);
}

Rows Rotation::rowsAt(const std::vector<RingTensor>& ringTensors, seqparRing_t ring, const Buffers* buffers, int index,
                      int rank) const {
  return rowsOf(ringTensors[static_cast<size_t>(index)], pointer(ring, buffers, index), rank);
}

Tensor Rotation::homeTensor(int sum) const {
  auto tensor = tensorAt(sums_, homeIsNext() ? sumRing_.get() : nullptr, &home_, sum, order_.rank);
  if (order_.steps == 0) tensor.tokens = 0;
  return tensor;
}

Rows Rotation::homeRows(int sum) const {
  auto rows = rowsAt(sums_, homeIsNext() ? sumRing_.get() : nullptr, &home_, sum, order_.rank);
  if (order_.steps == 0) rows.tokens = 0;
  return rows;
}

std::vector<Addend> Rotation::homeAddends(int sum) const {
  std::vector<Addend> addends;
  const auto home = homeTensor(sum);
  int64_t before = 0;
  for (const auto& range : ranges(order_.rank)) {
    if (home.tokens > 0) addends.push_back({home.rows(before, range.count), range.first});
    before += range.count;
  }
  return addends;
}

std::vector<Rotation::HomePartial> Rotation::homePartials(int out, int lse) const {
  std::vector<HomePartial> parts;
  const Partial home{homeTensor(out), homeRows(lse)};
  int64_t before = 0;
  for (const auto& range : ranges(order_.rank)) {
    if (home.out.tokens > 0) {
      parts.push_back({{home.out.rows(before, range.count), home.lse.rows(before, range.count)}, range.first});
    }
    before += range.count;
  }
  return parts;
}

/// The send address of this rank's own input: its own address if it is one dense range, otherwise of a copy in the
/// ring's memory.
template <typename View>
const void* Rotation::ready(const View& own, const View& memory) {
  const auto mine = ranges(order_.rank);
  if (mine.empty()) return own.data;
  if (mine.size() == 1) {
    const View part = own.rows(mine.front().first, mine.front().count);
    if (part.dense()) return part.data;
  }
  int64_t before = 0;
  for (const auto& range : mine) {
    exec_.copy(memory.rows(before, range.count), own.rows(range.first, range.count));
    before += range.count;
  }
  return memory.data;
}

const void* Rotation::ready(int input, const Input& own) {
  if (const auto* tensor = std::get_if<Tensor>(&own)) {
    return ready(*tensor, tensorAt(inputs_, inputRing_.get(), nullptr, input, order_.rank));
  }
  return ready(std::get<Rows>(own), rowsAt(inputs_, inputRing_.get(), nullptr, input, order_.rank));
}

void Rotation::begin(std::span<const Input> own) {
  current_ = order_.rank;
  if (sumRing_) require(seqparRingReset(sumRing_.get()), kCaller, problem_.comm);
  if (!inputRing_) return;
  require(seqparRingReset(inputRing_.get()), kCaller, problem_.comm);
  std::vector<const void*> from;
  for (size_t i = 0; i < own.size(); ++i) from.push_back(ready(static_cast<int>(i), own[i]));
  require(seqparRingResetFrom(inputRing_.get(), from.data()), kCaller, problem_.comm);
}

void Rotation::turn(const Turn& turn) {
  const int first = order_.firstSum();
  for (int step = 0; step <= order_.steps; ++step) {
    const bool more = step < order_.steps;
    current_ = order_.source(step);
    if (more) require(seqparRingPost(inputRing_.get(), exec_.main()), kCaller, problem_.comm);
    turn.compute(step);
    if (turn.addSums && order_.steps > 0 && step >= first) {
      if (step > first) require(seqparRingWait(sumRing_.get(), exec_.main()), kCaller, problem_.comm);
      turn.addSums(step, step == first);
      if (more) require(seqparRingPost(sumRing_.get(), exec_.main()), kCaller, problem_.comm);
    }
    if (more) require(seqparRingWait(inputRing_.get(), exec_.main()), kCaller, problem_.comm);
  }
  if (turn.addSums && order_.steps > 0 && homeIsNext()) {
    require(seqparRingPost(sumRing_.get(), exec_.main()), kCaller, problem_.comm);
    turn.meanwhile();
    require(seqparRingWait(sumRing_.get(), exec_.main()), kCaller, problem_.comm);
  } else if (turn.addSums && order_.steps > 0) {
    exec_.fork();
    sendHome(exec_.side());
    turn.meanwhile();
    exec_.join();
  } else {
    turn.meanwhile();
  }
  current_ = order_.rank;
}

/// Sends the sums from the last holder to the owner in one hop.
void Rotation::sendHome(void* stream) {
  const int owner = order_.source(order_.steps), holder = order_.holder(order_.steps);
  std::vector<const void*> out;
  std::vector<size_t> outBytes, inBytes;
  for (size_t s = 0; s < sums_.size(); ++s) {
    out.push_back(pointer(sumRing_.get(), &sum_, static_cast<int>(s)));
    outBytes.push_back(bytes(sums_[s], owner));
    inBytes.push_back(bytes(sums_[s], order_.rank));
  }
  seqparShiftParams_t shift = SEQPAR_SHIFT_PARAMS_INITIALIZER;
  shift.sendPeer = problem_.member(owner);
  shift.receivePeer = problem_.member(holder);
  shift.sendTensors = shift.receiveTensors = static_cast<int>(sums_.size());
  shift.sendBuffers = out.data();
  shift.sendBytes = outBytes.data();
  shift.receiveBuffers = home_.data();
  shift.receiveBytes = inBytes.data();
  require(seqparShift(&shift, problem_.comm, stream), kCaller, problem_.comm);
}

}  // namespace seqpar::attn
