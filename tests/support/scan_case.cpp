#include "scan_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>

#include "base/convert.h"

namespace seqpar::test {

namespace {

Vector<std::byte> encode(const std::vector<float>& values, seqparDataType_t type) {
  Vector<std::byte> bytes(values.size() * sizeOf(type));
  convert(values.data(), seqparFloat32, bytes.data(), type, values.size());
  return bytes;
}

/// Draws the values of a case. The standard library's distributions differ between implementations, so only the engine
/// is used.
class Draw {
 public:
  Draw(const ScanSpec& spec, Numbers numbers, std::uint64_t seed) : spec_(spec), numbers_(numbers), engine_(seed) {}

  std::vector<float> states() {
    std::vector<float> values(spec_.elements());
    for (float& value : values) value = exact() ? static_cast<float>(below(5)) - 2 : real(-1, 1);
    const auto rounded = encode(values, spec_.stateType);
    convert(rounded.data(), spec_.stateType, values.data(), seqparFloat32, values.size());
    return values;
  }

  std::vector<float> transition() {
    std::vector<float> values(spec_.transitionElements());
    if (spec_.op == seqparScanMatrix) {
      for (size_t head = 0; head < spec_.heads; ++head) matrix(values.data() + head * spec_.dk * spec_.dk);
    } else {
      for (float& value : values) value = decay();
    }
    return values;
  }

  std::vector<unsigned char> flags() {
    std::vector<unsigned char> values(spec_.sequences, 0);
    if (!spec_.flags) return values;
    for (unsigned char& value : values) {
      if (below(4) == 0) value |= SEQPAR_SCAN_RESET_IN;
      if (below(4) == 0) value |= SEQPAR_SCAN_CUT;
    }
    return values;
  }

 private:
  bool exact() const { return numbers_ == Numbers::Exact; }
  size_t below(size_t bound) { return engine_() % bound; }
  float real(float least, float most) {
    return least + (most - least) * static_cast<float>(engine_() >> 40) * 0x1p-24F;
  }

  /// A factor that keeps results exact. With states of at most 2 and n = size factors, results are multiples of
  /// 2^-n (if halves are drawn, else of 1) and below 2 (n + 1), or below 2^(n + 2) if twos are drawn: 8, 11 or 24 bits.
  float exactFactor() {
    const bool floats = spec_.stateType == seqparFloat32 && spec_.wireType == seqparFloat32;
    const bool bfloats = spec_.stateType == seqparBfloat16 || spec_.wireType == seqparBfloat16;
    const bool few = spec_.size <= 8;
    static constexpr float kFactors[] = {1, 1, -1, 0, 2, -2, 0.5F, -0.5F};
    const size_t choices = floats ? (few ? 8 : 6) : (!bfloats && few ? 6 : 4);
    return kFactors[below(choices)];
  }

  float decay() {
    if (!exact()) return spec_.decayForm == seqparDecayLinear ? real(-1, 1) : real(-2, 0);
    const float factor = exactFactor();
    if (spec_.decayForm == seqparDecayLinear) return factor;
    const float size = std::abs(factor);
    if (size == 0) return -std::numeric_limits<float>::infinity();
    return spec_.decayForm == seqparDecayLog2 ? std::log2(size) : 0.0F;
  }

  void matrix(float* rows) {
    const size_t dk = spec_.dk;
    if (!exact()) {
      for (size_t i = 0; i < dk * dk; ++i) rows[i] = real(-1, 1) / static_cast<float>(dk);
      return;
    }
    std::vector<size_t> order(dk);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = dk; i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    std::fill_n(rows, dk * dk, 0.0F);
    for (size_t i = 0; i < dk; ++i) rows[i * dk + order[i]] = exactFactor();
  }

  const ScanSpec& spec_;
  Numbers numbers_;
  std::mt19937_64 engine_;
};

}  // namespace

size_t transitionElements(seqparScanOp_t op, size_t heads, size_t dk) {
  switch (op) {
    case seqparScanSum:
      return 0;
    case seqparScanScalar:
      return heads;
    case seqparScanDiag:
      return heads * dk;
    case seqparScanMatrix:
      break;
  }
  return heads * dk * dk;
}

std::ostream& operator<<(std::ostream& out, const ScanSpec& spec) {
  static constexpr const char* kOps[] = {"sum", "scalar", "diag", "matrix"};
  static constexpr const char* kTypes[] = {"fp32", "fp16", "bf16"};
  static constexpr const char* kForms[] = {"linear", "log", "log2"};
  return out << kOps[spec.op] << (spec.direction == seqparForward ? " forward" : " reverse") << ", " << spec.size
             << " ranks, " << spec.heads << "x" << spec.dk << "x" << spec.dv << " " << kTypes[spec.stateType]
             << ", wire " << kTypes[spec.wireType] << ", " << kForms[spec.decayForm] << ", " << spec.sequences
             << " sequences" << (spec.flags ? " with flags" : "") << (spec.initial ? ", initial" : "");
}

ScanCase makeScanCase(const ScanSpec& spec, Numbers numbers, std::uint64_t seed) {
  ScanCase result;
  result.spec = spec;
  Draw draw(spec, numbers, seed);
  if (spec.initial) result.initial = draw.states();
  for (int rank = 0; rank < spec.size; ++rank) {
    ScanCase::Rank& each = result.ranks.emplace_back();
    each.state = draw.states();
    each.transition = draw.transition();
    each.flags = draw.flags();
  }
  return result;
}

ScanBuffers::ScanBuffers(const ScanCase& scanCase, int rank, Outputs outputs)
    : case_(&scanCase),
      rank_(rank),
      outputs_(outputs),
      state_(encode(scanCase.ranks[rank].state, scanCase.spec.stateType)),
      initial_(encode(scanCase.initial, scanCase.spec.stateType)),
      transition_(scanCase.ranks[rank].transition.begin(), scanCase.ranks[rank].transition.end()) {
  // Outputs are initialized to NaN, which no correct result contains.
  constexpr std::byte kNan{0xff};
  if (outputs == Outputs::Both || outputs == Outputs::PrefixOnly || outputs == Outputs::TotalInPlace) {
    prefix_.assign(state_.size(), kNan);
  }
  if (outputs == Outputs::Both || outputs == Outputs::TotalOnly || outputs == Outputs::PrefixInPlace) {
    total_.assign(state_.size(), kNan);
  }
}

void* ScanBuffers::prefix() {
  if (!wantsPrefix()) return nullptr;
  return outputs_ == Outputs::PrefixInPlace ? state_.data() : prefix_.data();
}

void* ScanBuffers::total() {
  if (!wantsTotal()) return nullptr;
  return outputs_ == Outputs::TotalInPlace ? state_.data() : total_.data();
}

ScanProblem ScanBuffers::problem() {
  const ScanSpec& spec = case_->spec;
  ScanProblem problem;
  problem.op = spec.op;
  problem.direction = spec.direction;
  problem.heads = spec.heads;
  problem.dk = spec.dk;
  problem.dv = spec.dv;
  problem.stateType = spec.stateType;
  problem.wireType = spec.wireType;
  problem.decayForm = spec.decayForm;
  for (size_t head = 0; head < spec.heads; ++head) problem.headFlags.push_back(case_->flagsOf(rank_, head));
  problem.first = rank_ == spec.rankAt(0);
  problem.state = state();
  problem.transition = transition();
  problem.initial = problem.first ? initial() : nullptr;
  problem.prefix = prefix();
  problem.total = total();
  return problem;
}

std::vector<float> ScanBuffers::decode(const void* data) const {
  std::vector<float> values(case_->spec.elements());
  convert(data, case_->spec.stateType, values.data(), seqparFloat32, values.size());
  return values;
}

std::vector<float> ScanBuffers::prefixValues() {
  return decode(prefix());
}

std::vector<float> ScanBuffers::totalValues() {
  return decode(total());
}

bool ScanBuffers::inputsIntact() const {
  const ScanCase::Rank& given = case_->ranks[rank_];
  const bool inPlace = outputs_ == Outputs::PrefixInPlace || outputs_ == Outputs::TotalInPlace;
  return (inPlace || state_ == encode(given.state, case_->spec.stateType)) &&
         std::equal(transition_.begin(), transition_.end(), given.transition.begin()) &&
         initial_ == encode(case_->initial, case_->spec.stateType);
}

}  // namespace seqpar::test
