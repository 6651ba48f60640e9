// The table of algorithms: error texts, tests, documents and tools list the algorithms from it.
#pragma once

#include <span>
#include <string>

#include "attn/problem/algorithm.h"

namespace seqpar::attn {

/// All rows: softmax attention, then linear attention, in the order of their ids. AUTO has no row.
std::span<const AlgorithmRow> algorithms();

/// The row with this id for softmax or for linear attention (LOCAL has one for each); null if there is none.
const AlgorithmRow* findAlgorithm(int id, bool softmax);

/// The algorithms of the problem's family that support it, as "ring, zigzag, striped"; "none" if none does.
std::string algorithmsThatCan(const Problem& problem);

}  // namespace seqpar::attn
