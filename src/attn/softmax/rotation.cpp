#include "attn/softmax/rotation.h"

#include "attn/boundary.h"

namespace seqpar::attn {
namespace {

constexpr const char* kWho = "attention plan";

bool sees(const Problem& problem, int queryRank, int keyRank) {
  return problem.scores(queryRank, keyRank) > 0;
}

}  // namespace

int RingOrder::moved(int hops) const {
  if (direction == seqparReverse) hops = -hops;
  const int sign = hops < 0 ? -1 : 1, count = hops * sign;
  const int windows = ranks / inner;
  const auto modulo = [](int a, int n) { return (a % n + n) % n; };
  const int window = modulo(rank / inner + sign * (count / inner), windows);
  return window * inner + modulo(rank % inner + sign * (count % inner), inner);
}

RingOrder ringOrder(const Problem& problem, int inner, bool queries) {
  RingOrder order{problem.ranks(), problem.rank(), inner, queries ? seqparReverse : seqparForward, 0};
  for (int step = problem.ranks() - 1; step > 0 && order.steps == 0; --step) {
    for (int rank = 0; rank < problem.ranks() && order.steps == 0; ++rank) {
      RingOrder other = order;
      other.rank = rank;
      const int source = other.source(step);
      if (queries ? sees(problem, source, rank) : sees(problem, rank, source)) order.steps = step;
    }
  }
  return order;
}

Rotation::Rotation(const Problem& problem, Exec& exec, const RingOrder& order, std::vector<Traveller> inputs,
                   std::vector<Traveller> sums)
    : problem_(problem),
      exec_(exec),
      order_(order),
      inputs_(std::move(inputs)),
      sums_(std::move(sums)),
      home_(sums_.size(), nullptr),
      current_(order.rank) {}

size_t Rotation::bytes(const Traveller& t, int rank) const {
  const int64_t rows = problem_.desc.batch * t.heads * t.tokens->tokensOf(rank);
  return t.dim == 0 ? static_cast<size_t>(rows) * sizeof(float) : static_cast<size_t>(rows * t.dim) * bytesOf(t.type);
}

void Rotation::carve(Arena& arena) {
  for (size_t s = 0; s < sums_.size(); ++s) home_[s] = arena.take(bytes(sums_[s], order_.rank));
}

void Rotation::open() {
  if (order_.steps == 0) return;
  inputRing_ = makeRing(inputs_, true);
  if (!sums_.empty()) sumRing_ = makeRing(sums_, false);
}

Rotation::Ring Rotation::makeRing(const std::vector<Traveller>& travellers, bool unchanged) const {
  std::vector<size_t> sizes;
  for (int rank = 0; rank < order_.ranks; ++rank) {
    for (const auto& t : travellers) sizes.push_back(bytes(t, rank));
  }
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.direction = order_.direction;
  if (!problem_.members.empty()) params.ranks = problem_.members.data();
  params.nranks = order_.ranks;
  params.inner = order_.inner == order_.ranks ? 0 : order_.inner;
  params.unchanged = unchanged ? 1 : 0;
  params.steps = order_.steps;
  params.tensors = static_cast<int>(travellers.size());
  params.bytes = sizes.data();
  params.uneven = 1;
  seqparRing_t ring = nullptr;
  require(seqparRingCreate(&ring, &params, problem_.comm), kWho, problem_.comm);
  return {ring, &seqparRingDestroy};
}

void* Rotation::pointer(seqparRing_t ring, int index) const {
  void* data = nullptr;
  require(seqparRingCurrent(ring, index, &data, nullptr), kWho, problem_.comm);
  return data;
}

Tensor Rotation::tensorOf(const Traveller& t, void* data, int rank) const {
  return denseTensor(data, t.type, problem_.desc.batch, t.tokens->tokensOf(rank), t.heads, t.dim);
}

Rows Rotation::rowsOf(const Traveller& t, void* data, int rank) const {
  return denseRows(static_cast<float*>(data), problem_.desc.batch, t.heads, t.tokens->tokensOf(rank));
}

Tensor Rotation::tensorAt(const std::vector<Traveller>& travellers, seqparRing_t ring, int index, int rank) const {
  const auto i = static_cast<size_t>(index);
  return tensorOf(travellers[i], ring == nullptr ? home_[i] : pointer(ring, index), rank);
}

Rows Rotation::rowsAt(const std::vector<Traveller>& travellers, seqparRing_t ring, int index, int rank) const {
  const auto i = static_cast<size_t>(index);
  return rowsOf(travellers[i], ring == nullptr ? home_[i] : pointer(ring, index), rank);
}

Tensor Rotation::homeTensor(int sum) const {
  return tensorOf(sums_[static_cast<size_t>(sum)], home_[static_cast<size_t>(sum)], order_.rank);
}

Rows Rotation::homeRows(int sum) const {
  return rowsOf(sums_[static_cast<size_t>(sum)], home_[static_cast<size_t>(sum)], order_.rank);
}

void Rotation::reset() {
  current_ = order_.rank;
  if (inputRing_) require(seqparRingReset(inputRing_.get()), kWho, problem_.comm);
  if (sumRing_) require(seqparRingReset(sumRing_.get()), kWho, problem_.comm);
}

void Rotation::turn(const std::function<void(int)>& compute, const std::function<void(int)>& addSums) {
  const bool sums = addSums != nullptr;
  for (int step = 0; step <= order_.steps; ++step) {
    const bool more = step < order_.steps;
    current_ = order_.source(step);
    if (more) require(seqparRingPost(inputRing_.get(), exec_.main()), kWho, problem_.comm);
    compute(step);
    if (sums) {
      if (step > 0) require(seqparRingWait(sumRing_.get(), exec_.main()), kWho, problem_.comm);
      addSums(step);
      if (more) require(seqparRingPost(sumRing_.get(), exec_.main()), kWho, problem_.comm);
    }
    if (more) require(seqparRingWait(inputRing_.get(), exec_.main()), kWho, problem_.comm);
  }
  if (sums) sendHome();
  current_ = order_.rank;
}

/// From the last holder to the owner in one hop.
void Rotation::sendHome() {
  if (order_.steps == 0) return;
  const int owner = order_.source(order_.steps), holder = order_.holder(order_.steps);
  std::vector<const void*> out;
  std::vector<size_t> outBytes, inBytes;
  for (size_t s = 0; s < sums_.size(); ++s) {
    out.push_back(pointer(sumRing_.get(), static_cast<int>(s)));
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
  require(seqparShift(&shift, problem_.comm, exec_.main()), kWho, problem_.comm);
}

}  // namespace seqpar::attn
