// The table of algorithms: everything that depends on which there are comes from it.
#pragma once

#include <span>
#include <string>

#include "attn/problem/algorithm.h"

namespace seqpar::attn {

/// All that this version has, in the order of their numbers. AUTO is no row.
std::span<const AlgorithmRow> algorithms();

/// The row of a number for softmax or for linear attention (LOCAL has one for each); null if there is none.
const AlgorithmRow* findAlgorithm(int id, bool softmax);

/// "ring, zigzag, striped": the algorithms of the problem's family that do not refuse it; "none" without any.
std::string algorithmsThatCan(const Problem& problem);

}  // namespace seqpar::attn
