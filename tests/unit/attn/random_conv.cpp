// Random problems of the short convolution.
#include <optional>
#include <sstream>

#include "random_case.h"
#include "short_conv_check.h"

namespace seqpar::attn::test {
namespace {

class RandomConv final : public RandomCase {
 public:
  RandomConv(std::mt19937_64& random, const RandomPlace& place) {
    lengths_ = drawShards(random, place.ranks, 300);
    for (const auto length : lengths_) c_.tokens += static_cast<size_t>(length);
    c_.width = 1 + random() % SEQPAR_SHORT_CONV_WIDTH;
    c_.channels = random() % 2 == 0 ? 1 + random() % 200 : 4 * (1 + random() % 100);
    c_.silu = random() % 2 == 0;
    c_.bias = random() % 2 == 0;
    c_.type = static_cast<int>(random() % 3);
    c_.weightType = static_cast<int>(random() % 3);
    c_.batch = 1 + random() % 2;
    if (c_.batch == 1) c_.cuSeqlens = drawBorders(random, lengths_);
    options_.onStream = random() % 2 == 0;
    seed_ = static_cast<unsigned>(random());
  }

  std::string text() const override {
    std::ostringstream text;
    text << "batch " << c_.batch << ", channels " << c_.channels << ", width " << c_.width << ", type " << c_.type
         << "/" << c_.weightType << (c_.silu ? ", SiLU" : "") << (c_.bias ? ", bias" : "") << ", shards";
    for (const auto length : lengths_) text << " " << length;
    if (!c_.cuSeqlens.empty()) text << ", packed";
    for (const auto at : c_.cuSeqlens) text << " " << at;
    return text.str();
  }
  void expect() override {
    c_.fill(seed_);
    reference_.emplace(c_);
  }
  std::string run(const RankThreads& ranks, const Placement* placement) override {
    options_.placement = placement;
    results_.resize(lengths_.size());
    const auto said = ranks.each([&](int rank) {
      return runConv(c_, lengths_, rank, ranks[rank], options_, results_[static_cast<size_t>(rank)]);
    });
    for (const auto& text : said) {
      if (!text.empty()) return text;
    }
    return "";
  }
  std::string differences() const override { return test::differences(c_, *reference_, lengths_, results_); }

 private:
  ConvCase c_;
  std::vector<int64_t> lengths_;
  ConvOptions options_;
  unsigned seed_ = 0;
  std::optional<ConvReference> reference_;
  std::vector<ConvResult> results_;
};

}  // namespace

std::unique_ptr<RandomCase> drawConv(std::mt19937_64& random, const RandomPlace& place) {
  return std::make_unique<RandomConv>(random, place);
}

}  // namespace seqpar::attn::test
