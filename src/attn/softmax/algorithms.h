// The algorithms of softmax attention, each from the file of its name; ring.cpp has ZIGZAG and STRIPED too.
#pragma once

#include <memory>
#include <string>

#include "attn/plan/operator.h"

namespace seqpar::attn {

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRing(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRingPassQ(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeBurst(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeDoubleRing(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeAllGatherKv(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeUlysses(const Problem& problem, Exec& exec);

/// DOUBLE_RING: ranks of a window.
int windowOf(const Problem& problem);
/// ALLGATHER_KV: parts in which the heads are gathered.
int64_t slicesOfHeads(const Problem& problem);

std::string refusesZigzag(const Problem& problem);
std::string refusesStriped(const Problem& problem);
std::string refusesRingPassQ(const Problem& problem);

}  // namespace seqpar::attn
