#include <map>

#include "attn/boundary.h"
#include "attn/plan/plan.h"

namespace seqpar::attn {
namespace {

/// Modeled times that differ by less than this factor count as equal if ranks are on different nodes.
constexpr double kAsFastAmongNodes = 1.05;
/// If the plan is for inference with a cache.
constexpr double kAsFastWithCache = 1.1;

std::string names(bool softmax) {
  std::string all;
  for (const auto& row : algorithms()) {
    if (row.softmax == softmax) all += concat(all.empty() ? "" : ", ", row.name, " (", static_cast<int>(row.id), ")");
  }
  return all;
}

}  // namespace

Problem shardedFor(const Problem& problem, const AlgorithmRow& row) {
  Problem sharded = problem;
  const auto byKind = [&](seqparLayout_t layout, int64_t tokens) {
    layout.ranks = problem.ranks();
    layout.tokens = tokens;
    layout.sequences = 0;
    return Sharding("attention plan", layout);
  };
  if (!problem.hasLayout) {
    seqparLayout_t own = SEQPAR_LAYOUT_INITIALIZER;
    own.kind = row.ownLayout(problem);
    sharded.queries = byKind(own, problem.desc.tokens);
  }
  if (!problem.crossAttention()) {
    sharded.keys = sharded.queries;
  } else if (!problem.hasKvLayout) {
    sharded.keys = byKind(sharded.queries.layout(), problem.desc.kvTokens);
  }
  sharded.table = makeScoreTable(sharded.queries, sharded.keys, sharded.visibility());
  return sharded;
}

std::vector<Candidate> candidatesFor(const Problem& problem, bool estimates) {
  std::vector<Candidate> all;
  std::map<seqparLayoutKind_t, Problem> shardedByKind;  // counts the scores once per kind
  for (const auto& row : algorithms()) {
    if (row.softmax != problem.softmax()) continue;
    Candidate candidate{&row, row.refuses(problem), {}};
    if (candidate.refusal.empty() && estimates) {
      const auto kind = row.ownLayout(problem);
      if (shardedByKind.count(kind) == 0) shardedByKind.emplace(kind, shardedFor(problem, row));
      const auto& sharded = shardedByKind.at(kind);
      candidate.estimate = row.estimate(sharded);
    }
    all.push_back(std::move(candidate));
  }
  return all;
}

const AlgorithmRow& chooseAlgorithm(const char* call, const Problem& problem,
                                    const std::vector<Candidate>& candidates) {
  const int id = problem.desc.algorithm;
  const char* const family = problem.softmax() ? "softmax" : "linear";
  if (id != seqparAttnAuto) {
    for (const auto& candidate : candidates) {
      if (candidate.row->id != id) continue;
      if (candidate.refusal.empty()) return *candidate.row;
      fail(seqparInvalidUsage, call, ": desc->algorithm is ", id, " (", candidate.row->name, "), which ",
           candidate.refusal, "; expected one that can: ", algorithmsThatCan(problem));
    }
    const bool other = findAlgorithm(id, !problem.softmax()) != nullptr;
    fail(other ? seqparInvalidUsage : seqparInvalidArgument, call, ": desc->algorithm is ", id,
         other ? concat(" (", seqparAttnAlgorithmName(id), ")") : "", ", expected ", seqparAttnAuto,
         " (auto) or one for ", family, " attention: ", names(problem.softmax()));
  }
  const auto time = [&](const Candidate& c) { return problem.training() ? c.estimate.us() : c.estimate.forwardUs; };
  // LOCAL ignores the tokens of other ranks, so AUTO selects it for a single rank only.
  const auto can = [&](const Candidate& c) {
    return c.refusal.empty() && (c.row->id != seqparAttnLocal || problem.ranks() == 1);
  };
  const Candidate* best = nullptr;
  for (const auto& candidate : candidates) {
    if (can(candidate) && (best == nullptr || time(candidate) < time(*best))) best = &candidate;
  }
  if (best == nullptr) {
    fail(seqparInvalidUsage, call, ": desc->algorithm is 0 (auto), but no algorithm for ", family,
         " attention supports this: ", candidates.empty() ? "there is no algorithm" : candidates.front().refusal);
  }
  // Links between nodes are measured with all ranks active; a rank that sends less leaves bandwidth for the others.
  // Chunks of a prompt overlap with other requests' work, so they send the least: queries, or keys of short caches.
  const bool cached = problem.softmax() && problem.crossAttention() && !problem.training();
  if (problem.info.nodes == 1 && !cached) return *best->row;
  const double most = time(*best) * (cached ? kAsFastWithCache : kAsFastAmongNodes);
  for (const auto& candidate : candidates) {
    const bool fewer = candidate.estimate.bytes < best->estimate.bytes;
    if (can(candidate) && time(candidate) <= most && fewer) best = &candidate;
  }
  return *best->row;
}

}  // namespace seqpar::attn
