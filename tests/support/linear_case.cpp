#include "support/linear_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <string_view>

#include "base/convert.h"

namespace seqpar::test {
namespace {

void roundTo(int type, std::vector<float>& numbers) {
  const auto dataType = static_cast<seqparDataType_t>(type);
  std::vector<std::byte> rounded(numbers.size() * sizeOf(dataType));
  fromFloat(numbers.data(), rounded.data(), dataType, numbers.size());
  toFloat(rounded.data(), dataType, numbers.data(), numbers.size());
}

}  // namespace

std::vector<int> linearFamilies() {
  std::vector<int> ids;
  for (int id = seqparAttnSoftmax + 1; id < SEQPAR_ATTN_FAMILIES; ++id) ids.push_back(id);
  return ids;
}

const seqparAttnFamilyInfo_t& LinearCase::row() const {
  static const auto rows = [] {
    std::array<seqparAttnFamilyInfo_t, SEQPAR_ATTN_FAMILIES> all{};
    for (const int id : linearFamilies()) {
      all[static_cast<size_t>(id)] = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
      seqparAttnFamilyQuery(id, &all[static_cast<size_t>(id)]);
    }
    return all;
  }();
  return rows.at(static_cast<size_t>(family));
}

int LinearCase::shapeOf(const char* name) const {
  const auto& info = row();
  for (int i = 0; i < info.gates; ++i) {
    if (std::string_view(info.gateNames[i]) == name) return info.gateShapes[i];
  }
  return -1;
}

size_t LinearCase::gateWidth() const {
  return perChannel() ? dk : decayShape() == seqparAttnGatePerToken ? 1 : 0;
}

void LinearCase::fill(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> exponential;
  const auto fillNormal = [&](std::vector<float>& numbers, size_t count, int type) {
    numbers.resize(count);
    for (auto& number : numbers) number = normal(random);
    roundTo(type, numbers);
  };
  fillNormal(q, batch * tokens * keyHeads * dk, dataType);
  fillNormal(k, q.size(), dataType);
  fillNormal(v, batch * tokens * heads * dv, dataType);
  fillNormal(dOut, v.size(), dataType);
  const size_t initials = cuSeqlens.empty() ? batch : cuSeqlens.size() - 1;
  fillNormal(initial, hasInitial ? initials * heads * dk * dv : 0, seqparFloat32);
  fillNormal(dFinal, hasFinalGradient ? states() : 0, seqparFloat32);
  if (delta()) fillKeys(random);
  if (hasBeta()) fillBetas(random);
  gate.resize(!hasGate() ? 0 : perHead() ? heads : batch * tokens * heads * gateWidth());
  for (auto& number : gate) {
    const float sample = exponential(random);
    switch (strength) {
      case DecayStrength::Weak:
        number = -0.05f * sample;
        break;
      case DecayStrength::Strong:
        number = sample > 2.5f ? -30.0f : -5.0f * sample;
        break;
      case DecayStrength::Mixed:
        number = sample < 0.7f ? 0.0f : sample < 2.5f ? -3.0f * sample : -INFINITY;
        break;
    }
  }
  roundTo(gateType, gate);
}

/// Keys of length 0 to 1 unless the library normalizes them, so that states stay small.
void LinearCase::fillKeys(std::mt19937& random) {
  std::uniform_real_distribution<float> uniform;
  const size_t row = keyHeads * dk;
  for (size_t t = 0; t < batch * tokens; ++t) {
    const float own = keys == Keys::Independent || t % tokens == 0 ? 1.0f : keys == Keys::Walk ? 0.3f : 0.02f;
    for (size_t i = 0; own < 1 && i < row; ++i) {
      const float last = k[(t - 1) * row + i];
      k[t * row + i] = keys == Keys::Walk ? last + own * k[t * row + i] : k[i] + own * k[t * row + i];
    }
  }
  for (size_t r = 0; r < batch * tokens * keyHeads; ++r) {
    float sum = 0;
    for (size_t i = 0; i < dk; ++i) sum += k[r * dk + i] * k[r * dk + i];
    const bool zero = random() % 32 == 0;
    const float factor = zero ? 0.0f : (normalize ? 1.0f : std::sqrt(uniform(random)) / std::sqrt(sum));
    for (size_t i = 0; i < dk; ++i) k[r * dk + i] *= factor;
  }
  roundTo(dataType, k);
}

void LinearCase::fillBetas(std::mt19937& random) {
  std::uniform_real_distribution<float> uniform;
  beta.resize(batch * tokens * heads);
  for (auto& number : beta) {
    const auto kind = random() % 16;
    number = kind == 0 ? 0.0f : kind == 1 ? mostBeta : mostBeta * uniform(random);
  }
  roundTo(betaType, beta);
}

std::string LinearCase::describe() const {
  std::ostringstream text;
  text << "family " << row().name << ", batch " << batch << ", tokens " << tokens << ", heads " << heads << "/"
       << keyHeads << ", dk " << dk << ", dv " << dv << ", type " << dataType << "/" << gateType << ", decay "
       << static_cast<int>(strength) << (hasInitial ? ", initial" : "") << (hasFinalGradient ? ", dFinal" : "");
  if (hasBeta()) text << ", beta to " << mostBeta << " of type " << betaType;
  if (delta()) text << ", keys " << static_cast<int>(keys) << (normalize ? ", normalized" : "");
  if (!cuSeqlens.empty()) {
    text << ", packed";
    for (const auto at : cuSeqlens) text << " " << at;
  }
  return text.str();
}

double saturated(double value, int type) {
  constexpr double kMostHalf = 65504;
  return type == seqparFloat16 ? std::clamp(value, -kMostHalf, kMostHalf) : value;
}

std::string farFrom(const Bounded& expected, const std::vector<float>& found, double terms, int type, size_t offset,
                    double least) {
  // States and products below the smallest normal number of fp32, 2^-126, may be 0 in each of up to 64 terms.
  const double kHalfUlp[] = {0.0, 0x1p-11, 0x1p-8}, kSmallest[] = {0x1p-120, 0x1p-24, 0x1p-120};
  for (size_t i = 0; i < found.size(); ++i) {
    const double exact = expected.value[offset + i], magnitude = expected.magnitude[offset + i];
    const double value = saturated(exact, type);
    const double allowed = terms * 0x1p-24 * magnitude + kHalfUlp[type] * std::abs(value) + kSmallest[type] + least;
    if (std::abs(static_cast<double>(found[i]) - value) <= allowed) continue;
    // On hosts they become infinite instead, from 65520 on.
    const bool mayOverflow = type == seqparFloat16 && std::abs(exact) + allowed >= 65520;
    if (mayOverflow && static_cast<double>(found[i]) == std::copysign(INFINITY, exact)) continue;
    std::ostringstream text;
    text << "number " << i << " of " << found.size() << " is " << found[i] << ", expected " << value << " within "
         << allowed << " (magnitude " << magnitude << ")";
    return text.str();
  }
  return "";
}

}  // namespace seqpar::test
