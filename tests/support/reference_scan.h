// All-Scan by its definition, in fp64.
#pragma once

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

}  // namespace seqpar::test
