// All-Scan by its definition, in fp64.
#pragma once

#include <string>
#include <vector>

#include "scan_case.h"

namespace seqpar::test {

/// One output of one rank: its value, and the scale of its error bounds: the sum of the absolute values of all terms of
/// the output.
struct ReferenceState {
  std::vector<double> value;
  std::vector<double> size;
};

struct ReferenceRank {
  ReferenceState prefix;
  ReferenceState total;
};

/// The outputs of all ranks. A factor of 0 discards its operand, including NaN.
std::vector<ReferenceRank> referenceScan(const ScanCase& scanCase);

/// The allowed error of a result per unit of ReferenceState::size, in any algorithm.
///
/// Every term of an output is a product of a state and the factors after it. It is rounded: to fp32, by the
/// multiplication and additions of each composition (dk + 2 at most; a position takes part in at most two of them, with
/// a factor that is a few ulps off from the exponential); to the wire type, once or twice per position; and once to the
/// type of the output.
double relativeBound(const ScanSpec& spec);

/// The error of underflow, where a type's smallest values are evenly spaced.
double absoluteBound(const ScanSpec& spec);

/// The largest error relative to the allowed one; with Numbers::Exact, no error is allowed. Infinity if an infinite or
/// undefined value is found where another one is expected.
double excess(const ScanSpec& spec, const ReferenceState& expected, const std::vector<float>& got, Numbers numbers);

/// The first element with a larger error than excess() allows, as text; "" if there is none.
std::string firstWrong(const char* what, const ScanSpec& spec, const ReferenceState& expected,
                       const std::vector<float>& got, Numbers numbers);

/// firstWrong() of a rank's requested outputs. Buffers are ScanBuffers, or a type with its methods.
template <typename Buffers>
std::string firstWrong(Buffers& buffers, const ScanSpec& spec, const ReferenceRank& expected, Numbers numbers) {
  std::string wrong;
  if (buffers.wantsPrefix()) wrong = firstWrong("prefix", spec, expected.prefix, buffers.prefixValues(), numbers);
  if (!wrong.empty() || !buffers.wantsTotal()) return wrong;
  return firstWrong("total", spec, expected.total, buffers.totalValues(), numbers);
}

}  // namespace seqpar::test
