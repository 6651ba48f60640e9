// Random problems of softmax attention: every algorithm with some of its features, on shards of any lengths.
#include <optional>

#include "random_case.h"
#include "softmax_features.h"
#include "softmax_ranks.h"

namespace seqpar::attn::test {
namespace {

class RandomSoftmax final : public RandomCase {
 public:
  RandomSoftmax(std::mt19937_64& random, const RandomPlace& place) : ranks_(place.ranks) {
    do {
      draw(random, place);
    } while (!accepted(place.comm));
    options_.ownWorkspace = random() % 2 == 0;
    options_.onStream = random() % 2 == 0;
    options_.rounds = 1 + static_cast<int>(random() % 2);
    seed_ = random();
  }

  std::string text() const override { return spec_.text(); }
  void expect() override {
    case_.emplace(spec_, seed_);
    answer_.emplace(*case_);
  }
  std::string run(const RankThreads& ranks, const Placement* placement) override {
    options_.placement = placement;
    result_.emplace(*case_, NAN);
    return runOn(*case_, &ranks, options_, *result_);
  }
  std::string differences() const override { return test::differences(*case_, *answer_, *result_, ranks_); }

 private:
  void draw(std::mt19937_64& random, const RandomPlace& place) {
    spec_ = drawSpec(random, ranks_);
    if (place.onDevice && random() % 3 == 0) {
      constexpr int64_t kDims[] = {16, 32, 64, 128};
      spec_.headDim = kDims[random() % 4];
      spec_.valueDim = random() % 4 == 0 ? kDims[random() % 4] : spec_.headDim;
      spec_.tokens = test::draw(random, 1, 300);
      spec_.type = random() % 2 == 0 ? seqparBfloat16 : seqparFloat16;
    }
    const auto& feature = features()[random() % features().size()];
    if (std::string(feature.name) == "lengths") spec_.tokensOfRanks.resize(static_cast<size_t>(ranks_));
    feature.apply(spec_, random);
    if (spec_.tokensOfRanks.empty() && spec_.layoutKind < 0 && spec_.kvTokens == 0 && random() % 3 == 0) {
      spec_.tokensOfRanks = drawShards(random, ranks_, 40);
      spec_.tokens = std::accumulate(spec_.tokensOfRanks.begin(), spec_.tokensOfRanks.end(), int64_t{0});
      if (!spec_.bounds.empty()) spec_.bounds = drawBorders(random, spec_.tokensOfRanks);
      if (!spec_.slices.empty()) spec_.slices = drawSlices(random, spec_.tokens, spec_.keys());
    }
    const auto& rows = seqpar::attn::algorithms();
    do {
      row_ = &rows[random() % rows.size()];
    } while (!row_->softmax || (row_->id == seqparAttnLocal && ranks_ > 1));
    spec_.algorithm = row_->id;
  }
  bool accepted(seqparComm_t comm) const { return refusalOf(*row_, spec_, comm).empty(); }

  int ranks_;
  SoftmaxSpec spec_;
  const seqpar::attn::AlgorithmRow* row_ = nullptr;
  RunOptions options_;
  uint64_t seed_ = 0;
  std::optional<SoftmaxCase> case_;
  std::optional<SoftmaxAnswer> answer_;
  std::optional<SoftmaxResult> result_;
};

}  // namespace

std::unique_ptr<RandomCase> drawSoftmax(std::mt19937_64& random, const RandomPlace& place) {
  return std::make_unique<RandomSoftmax>(random, place);
}

}  // namespace seqpar::attn::test
