#include "ring_gradients.h"

#include <numeric>

#include "common/backend.h"
#include "seqpar/ring.h"

namespace seqpar::test {

void runRingGradients(seqparComm_t comm, int rank, int ranks, int inner) {
  constexpr size_t kCount = 20000;
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  const size_t bytes = kCount * sizeof(std::uint64_t);
  params.tensors = 1;
  params.bytes = &bytes;
  params.inner = inner;
  seqparRing_t keys = nullptr, gradients = nullptr;
  expectSuccess(seqparRingCreate(&keys, &params, comm), "seqparRingCreate", comm);
  params.unchanged = 0;
  params.steps = ranks;
  expectSuccess(seqparRingCreate(&gradients, &params, comm), "seqparRingCreate", comm);
  backend()->barrier();
  auto* const stream = backend()->noStream();
  const auto current = [&](seqparRing_t ring) {
    void* pointer = nullptr;
    expectSuccess(seqparRingCurrent(ring, 0, &pointer, nullptr), "seqparRingCurrent", comm);
    return pointer;
  };
  Vector<std::uint64_t> key(kCount), sum(kCount);
  const auto load = [&](Vector<std::uint64_t>& into, seqparRing_t ring) {
    backend()->copy(into.data(), current(ring), bytes, stream);
    backend()->synchronize(stream);
  };
  const auto store = [&](seqparRing_t ring, const Vector<std::uint64_t>& from) {
    backend()->copy(current(ring), from.data(), bytes, stream);
  };
  std::iota(key.begin(), key.end(), static_cast<std::uint64_t>(rank) * 1000);
  store(keys, key);
  store(gradients, sum);
  // Each adds key * (its rank + 1), so that home has key * ranks * (ranks + 1) / 2 in the end.
  for (int step = 0; step < ranks; ++step) {
    if (step + 1 < ranks) expectSuccess(seqparRingPost(keys, stream), "seqparRingPost", comm);
    if (step > 0) expectSuccess(seqparRingWait(gradients, stream), "seqparRingWait", comm);
    load(key, keys);
    load(sum, gradients);
    for (size_t i = 0; i < kCount; ++i) sum[i] += key[i] * static_cast<std::uint64_t>(rank + 1);
    store(gradients, sum);
    expectSuccess(seqparRingPost(gradients, stream), "seqparRingPost", comm);
    if (step + 1 < ranks) expectSuccess(seqparRingWait(keys, stream), "seqparRingWait", comm);
  }
  expectSuccess(seqparRingWait(gradients, stream), "seqparRingWait", comm);
  load(sum, gradients);
  const auto factor = static_cast<std::uint64_t>(ranks * (ranks + 1) / 2);
  for (size_t i = 0; i < kCount; ++i) {
    const auto expected = (static_cast<std::uint64_t>(rank) * 1000 + i) * factor;
    expect(sum[i] == expected, "inner ", inner, ": gradient ", i, " is ", sum[i], ", expected ", expected);
  }
  backend()->barrier();
  expectSuccess(seqparRingDestroy(gradients), "seqparRingDestroy");
  expectSuccess(seqparRingDestroy(keys), "seqparRingDestroy");
  backend()->barrier();
}

}  // namespace seqpar::test
