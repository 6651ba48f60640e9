#include "attn/models.h"

#include <cmath>

#include "attn/draw.h"
#include "seqpar/attn.h"

namespace seqpar::perf {

const std::vector<ModelShape>& modelShapes() {
  constexpr int kToken = seqparAttnScalar, kHead = seqparAttnFixed, kChannel = seqparAttnGla;
  static const std::vector<ModelShape> shapes{{"mamba2-2.7b", kToken, 80, 1, 128, 64, Decays::Mamba2},
                                              {"codestral-mamba-7b", kToken, 128, 8, 128, 64, Decays::Mamba2},
                                              {"nemotron-h-8b", kToken, 128, 8, 128, 64, Decays::Mamba2},
                                              {"nemotron-h-47b", kToken, 256, 8, 256, 64, Decays::Mamba2},
                                              {"nemotron-nano-v2-9b", kToken, 128, 8, 128, 80, Decays::Mamba2},
                                              {"nemotron-3-nano-30b", kToken, 64, 8, 128, 64, Decays::Mamba2},
                                              {"granite-4-h-small", kToken, 128, 1, 128, 64, Decays::Mamba2},
                                              {"granite-4-h-tiny", kToken, 48, 1, 128, 64, Decays::Mamba2},
                                              {"bamba-9b", kToken, 128, 1, 128, 64, Decays::Mamba2},
                                              {"falcon-h1-1.5b", kToken, 48, 1, 256, 64, Decays::Mamba2},
                                              {"falcon-h1-7b", kToken, 24, 1, 256, 128, Decays::Mamba2},
                                              {"falcon-h1-34b", kToken, 32, 2, 256, 128, Decays::Mamba2},
                                              {"zamba2-2.7b", kToken, 80, 1, 64, 64, Decays::Mamba2},
                                              {"zamba2-7b", kToken, 112, 2, 64, 64, Decays::Mamba2},
                                              {"gla-340m", kChannel, 4, 4, 128, 256, Decays::Drawn},
                                              {"gla-1.3b", kChannel, 4, 4, 256, 512, Decays::Drawn},
                                              {"gla-7b", kChannel, 32, 8, 128, 128, Decays::Drawn},
                                              {"retnet-1.3b", kHead, 8, 8, 256, 512, Decays::RetNet},
                                              {"minimax-01", kHead, 64, 64, 128, 128, Decays::Lightning}};
  return shapes;
}

Names modelNames() {
  Names names;
  for (const auto& shape : modelShapes()) names.emplace_back(shape.name, static_cast<int>(names.size()));
  return names;
}

std::vector<float> initialDecays(Decays kind, size_t rows, size_t heads, unsigned seed) {
  Draw ofHeads(1), ofTokens(seed);  // a head's values are equal on all ranks
  std::vector<float> base(heads), decays(rows * heads);
  for (size_t head = 0; head < heads; ++head) {
    const auto place = static_cast<float>(head);
    if (kind == Decays::RetNet) {
      base[head] = std::log1p(-std::exp2(-5 - place));
    } else if (kind == Decays::Lightning) {
      base[head] = -std::exp2(-8 * (place + 1) / static_cast<float>(heads));
    } else {
      const float a = -1 - 15 * ofHeads.next();
      base[head] = a * 0.001f * std::pow(100.0f, ofHeads.next());
    }
  }
  for (size_t i = 0; i < decays.size(); ++i) {
    decays[i] = base[i % heads] * (kind == Decays::Mamba2 ? 0.5f + ofTokens.next() : 1);
  }
  return decays;
}

}  // namespace seqpar::perf
