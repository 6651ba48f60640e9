// All-Scan by its definition, in fp64.
#pragma once

#include <string>
#include <vector>

#include "scan_case.h"

namespace seqpar::test {

/// One output of one rank: what it is, and a size that error bounds are relative to: the sum of the absolute values of
/// all terms that the output is the sum of.
struct ReferenceState {
  std::vector<double> value;
  std::vector<double> size;
};

struct ReferenceRank {
  ReferenceState prefix;
  ReferenceState total;
};

/// The outputs of all ranks. A factor of 0 forgets what it multiplies, NaN included.
std::vector<ReferenceRank> referenceScan(const ScanCase& scanCase);

/// How far a result may be from the reference, for each unit of ReferenceState::size, in any algorithm.
///
/// Every term of an output is a product of a state and the factors after it. On its way it is rounded, to fp32, by the
/// multiplication and additions of each composition (dk + 2 at most, of which a position takes part in two at most, its
/// factor coming a few ulps off from the exponential); to the wire type, once or twice a position; and once to the type
/// of the output.
double relativeBound(const ScanSpec& spec);

/// What underflow adds where a type's small numbers are spaced evenly.
double absoluteBound(const ScanSpec& spec);

/// The largest error in units of what is allowed; with Numbers::Exact, of nothing. Infinity where an infinite or
/// undefined number should have been another one.
double excess(const ScanSpec& spec, const ReferenceState& expected, const std::vector<float>& got, Numbers numbers);

/// The first number that is further off than excess() allows, in words; "" if none is.
std::string firstWrong(const char* what, const ScanSpec& spec, const ReferenceState& expected,
                       const std::vector<float>& got, Numbers numbers);

/// firstWrong() of the outputs that a rank wants. Buffers are ScanBuffers, or such as have their methods.
template <typename Buffers>
std::string firstWrong(Buffers& buffers, const ScanSpec& spec, const ReferenceRank& expected, Numbers numbers) {
  std::string wrong;
  if (buffers.wantsPrefix()) wrong = firstWrong("prefix", spec, expected.prefix, buffers.prefixValues(), numbers);
  if (!wrong.empty() || !buffers.wantsTotal()) return wrong;
  return firstWrong("total", spec, expected.total, buffers.totalValues(), numbers);
}

}  // namespace seqpar::test
