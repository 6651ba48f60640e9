#include "reference_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace seqpar::test {

namespace {

double factor(double value, seqparDecayForm_t form) {
  switch (form) {
    case seqparDecayLog:
      return std::exp(value);
    case seqparDecayLog2:
      return std::exp2(value);
    case seqparDecayLinear:
      break;
  }
  return value;
}

/// A[i][j] of a head: the factor of row j of x in row i of the result.
double transitionEntry(const ScanCase& scanCase, int rank, size_t head, size_t i, size_t j) {
  const ScanSpec& spec = scanCase.spec;
  const std::vector<float>& given = scanCase.ranks[rank].transition;
  switch (spec.op) {
    case seqparScanSum:
      return i == j ? 1 : 0;
    case seqparScanScalar:
      return i == j ? factor(given[head], spec.decayForm) : 0;
    case seqparScanDiag:
      return i == j ? factor(given[head * spec.dk + i], spec.decayForm) : 0;
    case seqparScanMatrix:
      break;
  }
  const bool forward = spec.direction == seqparForward;
  return given[(head * spec.dk + (forward ? i : j)) * spec.dk + (forward ? j : i)];
}

/// The total of one rank from its prefix.
ReferenceState apply(const ScanCase& scanCase, int rank, const ReferenceState& prefix) {
  const ScanSpec& spec = scanCase.spec;
  const std::vector<float>& state = scanCase.ranks[rank].state;
  ReferenceState total{{state.begin(), state.end()}, {state.begin(), state.end()}};
  for (double& size : total.size) size = std::abs(size);
  for (size_t head = 0; head < spec.heads; ++head) {
    if (scanCase.flagsOf(rank, head) != 0) continue;
    for (size_t i = 0; i < spec.dk; ++i) {
      for (size_t j = 0; j < spec.dk; ++j) {
        const double entry = transitionEntry(scanCase, rank, head, i, j);
        if (entry == 0) continue;
        const size_t to = (head * spec.dk + i) * spec.dv;
        const size_t from = (head * spec.dk + j) * spec.dv;
        for (size_t column = 0; column < spec.dv; ++column) {
          total.value[to + column] += entry * prefix.value[from + column];
          total.size[to + column] += std::abs(entry) * prefix.size[from + column];
        }
      }
    }
  }
  return total;
}

void resetHeads(const ScanCase& scanCase, int rank, ReferenceState& prefix) {
  const size_t headElements = scanCase.spec.dk * scanCase.spec.dv;
  for (size_t i = 0; i < prefix.value.size(); ++i) {
    if ((scanCase.flagsOf(rank, i / headElements) & SEQPAR_SCAN_RESET_IN) == 0) continue;
    prefix.value[i] = 0;
    prefix.size[i] = 0;
  }
}

double unitRoundoff(seqparDataType_t type) {
  switch (type) {
    case seqparFloat16:
      return 0x1p-11;
    case seqparBfloat16:
      return 0x1p-8;
    case seqparFloat32:
      break;
  }
  return 0x1p-24;
}

}  // namespace

std::vector<ReferenceRank> referenceScan(const ScanCase& scanCase) {
  const ScanSpec& spec = scanCase.spec;
  std::vector<ReferenceRank> result(spec.size);
  ReferenceState x{std::vector<double>(spec.elements(), 0.0), std::vector<double>(spec.elements(), 0.0)};
  if (!scanCase.initial.empty()) x.value.assign(scanCase.initial.begin(), scanCase.initial.end());
  for (size_t i = 0; i < x.value.size(); ++i) x.size[i] = std::abs(x.value[i]);
  for (int position = 0; position < spec.size; ++position) {
    const int rank = spec.rankAt(position);
    resetHeads(scanCase, rank, x);
    result[rank].prefix = x;
    result[rank].total = apply(scanCase, rank, x);
    x = result[rank].total;
  }
  return result;
}

double relativeBound(const ScanSpec& spec) {
  constexpr double kExponentialUlps = 4;
  const double positions = spec.size;
  const double products = spec.op == seqparScanMatrix ? static_cast<double>(spec.dk) : 1;
  const double arithmetic = positions * (2 * (products + 2) + kExponentialUlps) * 0x1p-24;
  const double wire = 2 * positions * unitRoundoff(spec.wireType);
  return std::expm1(arithmetic + wire + unitRoundoff(spec.stateType));
}

double absoluteBound(const ScanSpec& spec) {
  const bool halves = spec.stateType == seqparFloat16 || spec.wireType == seqparFloat16;
  // Half the spacing of subnormal values, for every rounding to a 16-bit type.
  return (2 * spec.size + 1) * (halves ? 0x1p-25 : 0x1p-134);
}

namespace {

/// An error relative to the allowed one.
double excessOf(const ScanSpec& spec, double expected, double size, float got, Numbers numbers) {
  const auto number = static_cast<float>(expected);
  if (number == got || (std::isnan(number) && std::isnan(got))) return 0;
  if (numbers == Numbers::Exact || !std::isfinite(expected) || !std::isfinite(got)) {
    return std::numeric_limits<double>::infinity();
  }
  return std::abs(static_cast<double>(got) - expected) / (relativeBound(spec) * size + absoluteBound(spec));
}

}  // namespace

double excess(const ScanSpec& spec, const ReferenceState& expected, const std::vector<float>& got, Numbers numbers) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, excessOf(spec, expected.value[i], expected.size[i], got[i], numbers));
  }
  return worst;
}

std::string firstWrong(const char* what, const ScanSpec& spec, const ReferenceState& expected,
                       const std::vector<float>& got, Numbers numbers) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (excessOf(spec, expected.value[i], expected.size[i], got[i], numbers) <= 1) continue;
    return concat(what, "[", i, "] is ", got[i], ", expected ", expected.value[i]);
  }
  return "";
}

}  // namespace seqpar::test
