// The algorithms of softmax attention, each from the file of its name; ring.cpp has ZIGZAG and STRIPED too,
// ulysses.cpp MEGATRON_SP.
#pragma once

#include <memory>
#include <string>

#include "attn/problem/operator.h"

namespace seqpar::attn {

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRing(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRingPassQ(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeBurst(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeDoubleRing(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeAllGatherKv(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeUlysses(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeUsp(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeMesh(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeAttention2d(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeDistAttn(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeStarTrail(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRingSelfAttention(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeMegatronSp(const Problem& problem, Exec& exec);

/// DOUBLE_RING: ranks of a window.
int windowOf(const Problem& problem);
/// USP: ranks of a group that exchanges heads.
int ranksOfUlyssesGroup(const Problem& problem);
/// MESH, ATTENTION2D: ranks whose queries are gathered together.
int ranksOfQueryGroup(const Problem& problem);
/// STARTRAIL: ranks of a team.
int ranksOfTeam(const Problem& problem);
/// ALLGATHER_KV: parts in which the heads are gathered.
int64_t slicesOfHeads(const Problem& problem);
/// ALLGATHER_KV: in which type gradients of keys travel.
seqparDataType_t gatheredSumType(const Problem& problem);

std::string refusesZigzag(const Problem& problem);
std::string refusesStriped(const Problem& problem);
std::string refusesDistAttn(const Problem& problem);
std::string refusesStarTrail(const Problem& problem);
std::string refusesRingPassQ(const Problem& problem);

}  // namespace seqpar::attn
