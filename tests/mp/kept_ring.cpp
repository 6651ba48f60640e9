#include "kept_ring.h"

#include <algorithm>
#include <random>
#include <utility>

namespace seqpar::test {
namespace {

constexpr size_t kLengths[] = {1, 63, 4096, 65537, 67529, 200001, 300001};

/// Bytes of a tensor: any function of the key, the place and the tensor will do that differs from byte to byte.
void fill(Vector<unsigned char>& bytes, std::uint64_t key, int place, int tensor) {
  std::uint64_t state = key * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(place * 64 + tensor) + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<unsigned char>(state >> 56);
  }
}

Vector<unsigned char> filled(size_t size, std::uint64_t key, int place, int tensor) {
  Vector<unsigned char> bytes(size);
  fill(bytes, key, place, tensor);
  return bytes;
}

/// As the public header states it.
int originOf(const seqparRingParams_t& params, int ranks, int place, int step) {
  const int inner = params.inner;
  const int windows = ranks / inner;
  const int sign = params.direction == seqparReverse ? 1 : -1;
  const int window = (place / inner + sign * (step / inner) + 2 * windows) % windows;
  return window * inner + (place % inner + sign * (step % inner) + 2 * inner) % inner;
}

}  // namespace

KeptRing::KeptRing(seqparComm_t comm, std::uint64_t seed) : comm_(comm), seed_(seed) {
  expectSuccess(seqparCommCount(comm, &ranks_), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank_), "seqparCommUserRank");
  draw(seed);
  open();
}

void KeptRing::draw(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<std::uint64_t>(bound)); };
  do params_.inner = 1 + below(ranks_);
  while (ranks_ % params_.inner != 0);
  params_.direction = below(2) == 0 ? seqparForward : seqparReverse;
  params_.unchanged = below(2);
  params_.keepHome = below(2);
  params_.steps = std::min(below(3), 1) * (1 + below(ranks_));  // a third: all but one
  params_.tensors = 1 + below(3);
  params_.uneven = 1;
  callersBuffers_ = below(2) == 0;
  const bool uneven = below(2) == 0;
  const auto tensors = static_cast<size_t>(params_.tensors);
  for (size_t i = 0; i < static_cast<size_t>(ranks_) * tensors; ++i) {
    const size_t drawn = kLengths[random() % std::size(kLengths)];
    sizes_.push_back(uneven || i < tensors ? drawn : sizes_[i % tensors]);
  }
  params_.bytes = sizes_.data();
}

void KeptRing::open() {
  const auto tensors = static_cast<size_t>(params_.tensors);
  const size_t* const own = sizes_.data() + static_cast<size_t>(rank_) * tensors;
  for (size_t tensor = 0; tensor < tensors; ++tensor) inputs_.emplace_back(own[tensor]);
  if (callersBuffers_) {
    int sets = 0;
    expectSuccess(seqparRingScratch(&params_, comm_, &sets), "seqparRingScratch", comm_);
    for (size_t i = 0; i < static_cast<size_t>(sets + 1) * tensors; ++i) {
      size_t most = 0;
      for (size_t at = i % tensors; at < sizes_.size(); at += tensors) most = std::max(most, sizes_[at]);
      memory_.emplace_back(i < tensors ? own[i] : most);
    }
    for (auto& memory : memory_) pointers_.push_back(memory.data());
    params_.home = pointers_.data();
    params_.scratch = pointers_.data() + tensors;
  }
  for (int step = 0; step <= steps(); ++step) {
    const int origin = originOf(params_, ranks_, rank_, step);
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      const size_t bytes = sizes_[static_cast<size_t>(origin) * tensors + tensor];
      polls_.push_back({step, static_cast<int>(tensor), origin, Vector<unsigned char>(bytes)});
    }
  }
  backend()->barrier();
  expectSuccess(seqparRingCreate(&ring_, &params_, comm_), "seqparRingCreate", comm_);
  backend()->barrier();
}

void KeptRing::close() {
  backend()->barrier();
  expectSuccess(seqparRingDestroy(ring_), "seqparRingDestroy");
  ring_ = nullptr;
  backend()->barrier();
}

std::pair<void*, size_t> KeptRing::current(int tensor) const {
  void* pointer = nullptr;
  size_t bytes = 0;
  expectSuccess(seqparRingCurrent(ring_, tensor, &pointer, &bytes), "seqparRingCurrent", comm_);
  return {pointer, bytes};
}

void KeptRing::look(void* stream, int step, size_t& next) {
  for (int tensor = 0; tensor < params_.tensors; ++tensor) {
    Look& here = polls_[next++];
    const auto [pointer, bytes] = current(tensor);
    expect(bytes == here.bytes.size(), "tensor ", tensor, " of step ", step, " has ", bytes, " bytes, expected ",
           here.bytes.size());
    backend()->copy(here.bytes.data(), pointer, bytes, stream);
  }
}

void KeptRing::enqueue(void* stream, const std::function<void(int step)>& between) {
  expectSuccess(seqparRingReset(ring_), "seqparRingReset", comm_);
  for (int tensor = 0; tensor < params_.tensors; ++tensor) {
    const auto [pointer, bytes] = current(tensor);
    backend()->copy(pointer, inputs_[static_cast<size_t>(tensor)].data(), bytes, stream);
  }
  size_t next = 0;
  for (int step = 0; step < steps(); ++step) {
    expectSuccess(seqparRingPost(ring_, stream), "seqparRingPost", comm_);
    look(stream, step, next);
    between(step);
    expectSuccess(seqparRingWait(ring_, stream), "seqparRingWait", comm_);
  }
  look(stream, steps(), next);
}

void KeptRing::setInputs(std::uint64_t key) {
  before_ = std::exchange(key_, key);
  for (size_t tensor = 0; tensor < inputs_.size(); ++tensor) {
    fill(inputs_[tensor], key, rank_, static_cast<int>(tensor));
  }
}

void KeptRing::check(std::uint64_t key) const {
  for (const Look& look : polls_) {
    const auto expected = filled(look.bytes.size(), key, look.origin, look.tensor);
    if (look.bytes == expected) continue;
    size_t first = 0, wrong = 0;
    for (size_t i = expected.size(); i-- > 0;) {
      if (look.bytes[i] == expected[i]) continue;
      first = i;
      ++wrong;
    }
    expect(
        false, "kept ring of seed ", seed_, " of ", ranks_, " ranks, inner ", params_.inner, ", direction ",
        params_.direction, ", unchanged ", params_.unchanged, ", keepHome ", params_.keepHome, ", steps ", steps(),
        callersBuffers_ ? ", caller's buffers" : "", ": tensor ", look.tensor, " of ", look.bytes.size(),
        " bytes is wrong after step ", look.step, " at place ", rank_, ": ", wrong, " bytes from number ", first,
        look.bytes == filled(expected.size(), before_, look.origin, look.tensor) ? ", all as in the round before" : "");
  }
}

void KeptRing::run(std::uint64_t key, const std::function<void(int step)>& between) {
  auto* const stream = backend()->noStream();
  setInputs(key);
  enqueue(stream, between);
  backend()->synchronize(stream);
  check(key);
}

CapturedRing::CapturedRing(seqparComm_t comm, std::uint64_t seed)
    : comm_(comm), seed_(seed), ring_(comm, seed), out_(kLengths[seed % std::size(kLengths)]), in_(out_.size()) {
  expectSuccess(seqparCommCount(comm, &ranks_), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank_), "seqparCommUserRank");
  // The ring has been used directly before, and is afterwards.
  ring_.run(seed, [](int) {});
  graph_ = backend()->capture(stream_.get(), [&] {
    ring_.enqueue(stream_.get(), [&](int step) {
      if (step == 0) shift();
    });
  });
  backend()->barrier();
  ring_.run(seed + 1, [](int) {});
}

void CapturedRing::shift() {
  expectSuccess(seqparSendRecv(out_.data(), out_.size(), (rank_ + 1) % ranks_, in_.data(), in_.size(),
                               (rank_ + ranks_ - 1) % ranks_, comm_, stream_.get()),
                "seqparSendRecv", comm_);
}

void CapturedRing::replay(std::uint64_t key, int times) {
  for (int i = 0; i < times; ++i, ++key) {
    ring_.setInputs(key);
    fill(out_, key, rank_, 63);
    const bool twice = key % 4 == 0;  // one replay right after another
    for (int again = 0; again < (twice ? 2 : 1); ++again) backend()->replay(graph_, stream_.get());
    backend()->synchronize(stream_.get());
    ring_.check(key);
    const bool right = in_ == filled(in_.size(), key, (rank_ + ranks_ - 1) % ranks_, 63);
    expect(right || ring_.steps() == 0, "captured ring of seed ", seed_, ": the shift of ", in_.size(),
           " bytes beside it is wrong");
  }
}

void CapturedRing::close() {
  if (seed_ % 2 == 0) {
    ring_.close();
    replay(seed_ + 2, 1);
  }
  backend()->barrier();
  backend()->releaseGraph(graph_);
  backend()->barrier();
  if (seed_ % 2 != 0) ring_.close();
}

}  // namespace seqpar::test
