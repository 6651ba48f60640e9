#include "random_case.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace seqpar::attn::test {

RandomKind randomKind(const std::string& name) {
  if (name == "linear") return RandomKind::Linear;
  if (name == "softmax") return RandomKind::Softmax;
  if (name == "conv") return RandomKind::Conv;
  throw std::invalid_argument("there are no random cases of " + name + ", expected linear, softmax or conv");
}

std::unique_ptr<RandomCase> drawCase(RandomKind kind, uint64_t seed, uint64_t index, const RandomPlace& place) {
  std::seed_seq sequence{seed & 0xffffffffU, seed >> 32, index};
  std::mt19937_64 random(sequence);
  switch (kind) {
    case RandomKind::Linear:
      return drawLinear(random, place);
    case RandomKind::Softmax:
      return drawSoftmax(random, place);
    case RandomKind::Conv:
      break;
  }
  return drawConv(random, place);
}

std::vector<int64_t> drawShards(std::mt19937_64& random, int ranks, int64_t most) {
  std::vector<int64_t> shards(static_cast<size_t>(ranks), 0);
  if (random() % 16 == 0) return shards;
  for (auto& tokens : shards) {
    const auto choice = random() % 8;
    tokens = static_cast<int64_t>(random() % static_cast<uint64_t>(choice < 2 ? 8 : most));
    if (choice == 0) tokens = 0;
    if (choice == 7) tokens = tokens / 64 * 64;
  }
  return shards;
}

std::vector<int64_t> drawBorders(std::mt19937_64& random, const std::vector<int64_t>& shards) {
  const int64_t tokens = std::accumulate(shards.begin(), shards.end(), int64_t{0});
  std::vector<int64_t> borders{0, tokens};
  const auto sequences = random() % 3 == 0 ? random() % 20 : random() % 6;
  for (uint64_t i = 0; i < sequences; ++i) {
    int64_t border = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1));
    if (random() % 4 == 0) {
      border =
          std::accumulate(shards.begin(), shards.begin() + static_cast<long>(random() % shards.size()), int64_t{0});
    } else if (random() % 4 == 0) {
      border = border / 64 * 64;
    }
    borders.push_back(border);
  }
  std::sort(borders.begin(), borders.end());
  return borders;
}

}  // namespace seqpar::attn::test
