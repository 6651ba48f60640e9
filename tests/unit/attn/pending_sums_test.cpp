// Deferred sums of gradients with any number of parts: a shard's ranges return one part each. The CUDA runtime and the
// kernels that add are functions on the CPU.
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "attn/block/cuda_pending.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn::softmax {

/// Elements of fp32 tensors, in the order of the kernel: the sum, then the parts.
cudaError_t launchSum(const Sum& s, cudaStream_t) {
  const auto at = [](const View& view, int64_t b, int64_t t, int64_t h) {
    return static_cast<float*>(view.data) + b * view.batch + t * view.token + h * view.head;
  };
  REQUIRE(s.count <= kMostParts);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t d = 0; d < s.dim; ++d) {
          float sum = s.sum.data == nullptr ? 0.0F : at(s.sum, b, t, h)[d];
          for (int i = 0; i < s.count; ++i) {
            const int64_t row = t - s.parts[i].first;
            if (row >= 0 && row < s.parts[i].tokens) sum += at(s.parts[i].out, b, row, h)[d];
          }
          at(s.out, b, t, h)[d] = sum;
        }
      }
    }
  }
  return cudaSuccess;
}
cudaError_t launchMerge(const Merge&, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t launchRows(const RowView&, const RowView&, float, int64_t, int64_t, int64_t, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace seqpar::attn::softmax

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

constexpr int64_t kTokens = 40, kHeads = 2, kDim = 3;

struct Memory {
  explicit Memory(int64_t tokens, float value = 0.0F)
      : values(static_cast<size_t>(tokens * kHeads * kDim), value),
        tensor(denseTensor(values.data(), seqparFloat32, 1, tokens, kHeads, kDim)) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::vector<float> values;
  Tensor tensor;
};

/// Small integers, whose sums are exact.
void fill(const Tensor& tensor, std::mt19937_64& random) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    static_cast<float*>(tensor.data)[i] = static_cast<float>(static_cast<int>(random() % 64));
  }
}

void add(std::vector<float>& to, const Tensor& from, int64_t first) {
  for (int64_t i = 0; i < from.elements(); ++i) {
    to[static_cast<size_t>(first * kHeads * kDim + i)] += static_cast<const float*>(from.data)[i];
  }
}

TEST_CASE("deferred sums contain every part once, for any number of parts") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  CudaExec exec(0, true, 0);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(seed, round);
    SumScratch scratch(exec);
    Memory slot0(kTokens), slot1(kTokens), sum(kTokens, 1000.0F), out(kTokens, 2000.0F), total(kTokens);
    scratch.give({slot0.tensor, slot1.tensor});
    fill(total.tensor, random);
    std::vector<float> expected(sum.values.size());
    const int end = round % 4;  // 0: finish, 1: finish with addends, 2: addTo, 3: store
    PendingSum pending(scratch, sum.tensor, end <= 1 && random() % 2 == 0 ? out.tensor : Tensor{});
    for (uint64_t part = 0, parts = random() % 8; part < parts; ++part) {
      const auto first = static_cast<int64_t>(random() % kTokens);
      const auto tokens = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(kTokens - first));
      const auto place = pending.place(first, tokens);
      fill(place.out, random);
      add(expected, place.out, first);
      pending.add(place);
    }
    std::vector<std::unique_ptr<Memory>> ranges;
    std::vector<Addend> addends;
    for (uint64_t range = 0, most = end == 1 ? random() % 17 : 0; range < most; ++range) {
      const auto first = static_cast<int64_t>(random() % kTokens);
      ranges.push_back(
          std::make_unique<Memory>(static_cast<int64_t>(random() % static_cast<uint64_t>(kTokens - first))));
      fill(ranges.back()->tensor, random);
      add(expected, ranges.back()->tensor, first);
      addends.push_back({ranges.back()->tensor, first});
    }
    if (end <= 1) {
      pending.finish(addends, out.tensor);
      CHECK(out.values == expected);
    } else if (end == 2) {
      add(expected, total.tensor, 0);
      pending.addTo(total.tensor);
      CHECK(total.values == expected);
    } else {
      pending.store();
      CHECK(sum.values == expected);
      // A sum in memory, with addends.
      ranges.clear();
      for (int i = 0; i < 7; ++i) {
        ranges.push_back(std::make_unique<Memory>(5));
        fill(ranges.back()->tensor, random);
        add(expected, ranges.back()->tensor, i);
        addends.push_back({ranges.back()->tensor, i});
      }
      scratch.finish(sum.tensor, addends, out.tensor);
      CHECK(out.values == expected);
    }
  }
}

}  // namespace
