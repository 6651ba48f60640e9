#include "attn/softmax/cost.h"

#include <algorithm>

#include "attn/softmax/algorithms.h"
#include "attn/softmax/ring.h"

namespace seqpar::attn {

double CostModel::blockUs(double scores, bool backward) const {
  const auto& d = problem_.desc;
  const double forward = 2.0 * scores * static_cast<double>(d.batch * d.heads * (d.headDim + d.valueDim));
  return (backward ? 2.5 : 1.0) * forward / flops_ * 1e6;
}

double CostModel::sendUs(double bytes) const {
  if (bytes == 0 || ranks_ == 1) return 0;
  return problem_.info.alphaUs + problem_.info.overheadUs + bytes / std::max(problem_.info.bandwidth, 1.0) * 1e6;
}

double CostModel::besideUs(double blocks, double transfers) const {
  const bool kernels = problem_.onDevice() && problem_.info.nodes == 1;
  return kernels ? blocks + transfers : std::max(blocks, transfers);
}

double CostModel::memoryUs(double bytes) const {
  constexpr double kBytesASecond = 2.5e12;
  return problem_.onDevice() ? bytes / kBytesASecond * 1e6 : 0;
}

double CostModel::bytes(double tokens, int64_t heads, int64_t dim, seqparDataType_t type) const {
  return tokens * static_cast<double>(problem_.desc.batch * heads * dim) * static_cast<double>(bytesOf(type));
}

double CostModel::kvBytes(double tokens, seqparDataType_t type) const {
  const auto& d = problem_.desc;
  return bytes(tokens, d.kvHeads, d.headDim + d.valueDim, type);
}

double CostModel::kvBytes(double tokens) const {
  return kvBytes(tokens, problem_.type());
}

double CostModel::kvSumBytes(double tokens) const {
  return kvBytes(tokens, problem_.wireType());
}

double CostModel::rowBytes(double tokens) const {
  const double number = bytes(tokens, problem_.desc.heads, 1, seqparFloat32);
  const bool withOut =
      problem_.kernel.forward != nullptr || (problem_.onDevice() && problem_.type() != seqparFloat32);  // cuDNN
  return number + (withOut ? outBytes(tokens) : number);
}

double CostModel::qBytes(double tokens) const {
  return bytes(tokens, problem_.desc.heads, problem_.desc.headDim, problem_.type());
}

double CostModel::outBytes(double tokens) const {
  return bytes(tokens, problem_.desc.heads, problem_.desc.valueDim, problem_.type());
}

double CostModel::scoresOfRank(int queryRank) const {
  double sum = 0;
  for (int k = 0; k < ranks_; ++k) sum += scores(queryRank, k);
  return sum;
}

double CostModel::mostScores() const {
  double most = 0;
  for (int q = 0; q < ranks_; ++q) most = std::max(most, scoresOfRank(q));
  return most;
}

Estimate estimateLocal(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  double most = 0;
  for (int rank = 0; rank < model.ranks(); ++rank) most = std::max(most, model.scores(rank, rank));
  return {model.blockUs(most, false), model.blockUs(most, true), 0};
}

Estimate estimateAllGatherKv(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const int ranks = problem.ranks();
  const double leaves = ranks > 1 ? static_cast<double>(ranks - 1) / ranks : 0;
  const auto tokens = leaves * static_cast<double>(problem.keys.tokens());
  const double kv = model.kvBytes(tokens), sums = model.kvBytes(tokens, gatheredSumType(problem));
  const auto slices = static_cast<double>(slicesOfHeads(problem));
  const double again = problem.reserves() ? 0 : 1;  // times that backward gathers
  const double gather = model.sendUs(kv / slices), scatter = model.sendUs(sums / slices);
  const double forward = model.blockUs(model.mostScores(), false), backward = model.blockUs(model.mostScores(), true);
  return {gather + model.besideUs(forward, (slices - 1) * gather),
          again * gather + model.besideUs(backward, (slices - 1) * (again * gather + scatter)) + scatter,
          (1 + again) * kv + sums};
}

Estimate estimateUlysses(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const int ranks = problem.ranks();
  const auto& d = problem.desc;
  const double leaves = static_cast<double>(ranks - 1) / ranks;
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  // Where there are fewer key heads than ranks, heads are copied.
  const double copies = std::max(1.0, static_cast<double>(ranks) / static_cast<double>(d.kvHeads));
  const double q = leaves * model.qBytes(queries), out = leaves * model.outBytes(queries);
  const double rows = leaves * model.rowBytes(queries);
  const bool copied = d.kvHeads % ranks != 0;  // else each head's gradients are whole on its rank
  const double kv = leaves * copies * model.kvBytes(keys);
  const double sums = copied ? leaves * copies * model.kvSumBytes(keys) : kv;
  double scores = 0;
  for (int rank = 0; rank < ranks; ++rank) scores += model.scoresOfRank(rank);
  const int64_t headsOfBusiest = (d.heads + ranks - 1) / ranks;
  const double mine = scores * static_cast<double>(headsOfBusiest) / static_cast<double>(d.heads);
  const double again = problem.reserves() ? 0 : 1;  // times that backward brings inputs to their heads
  return {model.blockUs(mine, false) + model.sendUs(q) + model.sendUs(kv) + model.sendUs(out),
          model.blockUs(mine, true) + again * (model.sendUs(q) + model.sendUs(kv) + model.sendUs(rows)) +
              model.sendUs(q) + model.sendUs(out) + model.sendUs(sums),
          2 * q + kv + 2 * out + sums + again * (q + kv + rows)};
}

Estimate estimateMegatronSp(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto others = static_cast<double>(problem.ranks() - 1);
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  // What ULYSSES brings to its heads comes whole; the way back is the same.
  const auto ulysses = estimateUlysses(problem, flops);
  const double share = 1 - 1 / static_cast<double>(problem.ranks());
  const double copies = std::max(1.0, static_cast<double>(problem.ranks()) / static_cast<double>(problem.desc.kvHeads));
  const double q = others * model.qBytes(queries) - share * model.qBytes(queries);
  const double kv = others * model.kvBytes(keys) - share * copies * model.kvBytes(keys);
  const double again = problem.reserves() ? 0 : 1;
  const double dOut = (others - share) * (model.outBytes(queries) + again * model.rowBytes(queries));
  return {ulysses.forwardUs + model.sendUs(std::max(0.0, q + kv)),
          ulysses.backwardUs + model.sendUs(std::max(0.0, again * (q + kv) + dOut)),
          ulysses.bytes + (1 + again) * (q + kv) + dOut};
}

Estimate estimateUsp(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto& d = problem.desc;
  const int size = ranksOfUlyssesGroup(problem), rounds = problem.ranks() / size;
  const double leaves = static_cast<double>(size - 1) / size;
  const double copies = std::max(1.0, static_cast<double>(size) / static_cast<double>(d.kvHeads));
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  const double q = leaves * model.qBytes(queries), out = leaves * model.outBytes(queries);
  const double kv = copies * model.kvBytes(keys), sums = copies * model.kvSumBytes(keys);
  const double sumsHome = leaves * (d.kvHeads % size != 0 ? sums : kv);  // where heads are copied, shares of sums
  const int64_t mostHeads = (d.heads + size - 1) / size;
  const double busiest = static_cast<double>(mostHeads) / static_cast<double>(d.heads);
  const double scores = model.mostScores() * size * busiest;
  const double forwardRing = (rounds - 1) * model.sendUs(kv);
  const double backwardRing = (rounds - 1) * (model.sendUs(kv) + model.sendUs(sums));
  const double load = model.sendUs(q) + model.sendUs(leaves * kv);
  const double again = problem.reserves() ? 0 : 1;  // times that backward brings inputs and outputs to their heads
  return {load + model.besideUs(model.blockUs(scores, false), forwardRing) + model.sendUs(out),
          again * (load + model.sendUs(out)) + model.sendUs(out) +
              model.besideUs(model.blockUs(scores, true), backwardRing) + (rounds > 1 ? model.sendUs(sums) : 0) +
              model.sendUs(q) + model.sendUs(sumsHome),
          2 * q + 2 * out + leaves * kv + again * (q + out + leaves * kv) + sumsHome + 2 * (rounds - 1) * kv +
              (rounds > 1 ? rounds * sums : 0)};
}

namespace {

/// The bytes that a rank sends in the groups of a mesh of a x b ranks.
struct MeshBytes {
  double q = 0, kv = 0;       ///< inputs of the forward pass
  double out = 0;             ///< partial outputs
  double gradientInputs = 0;  ///< queries, gradients of outputs, two numbers a row
  double dq = 0, sums = 0;
  double forward() const { return q + kv + out; }
  double backward() const { return gradientInputs + kv + dq + sums; }
};

MeshBytes meshBytes(const CostModel& model, int a) {
  const auto& problem = model.problem();
  const auto& d = problem.desc;
  const int b = problem.ranks() / a;
  const auto queries = static_cast<double>((a - 1) * problem.queries.longest());
  const auto keys = static_cast<double>((b - 1) * problem.keys.longest());
  const double rows = model.bytes(queries, d.heads, 1, seqparFloat32);
  MeshBytes bytes;
  bytes.q = model.qBytes(queries);
  bytes.kv = model.kvBytes(keys);
  bytes.out = model.bytes(queries, d.heads, d.valueDim, problem.wireType()) + rows;
  bytes.gradientInputs = bytes.q + model.outBytes(queries) + model.rowBytes(queries);
  bytes.dq = model.bytes(queries, d.heads, d.headDim, problem.wireType());
  bytes.sums = model.kvSumBytes(keys);
  return bytes;
}

struct MeshCost {
  double forwardUs = 0, backwardUs = 0;  ///< of a rank's tiles
  MeshBytes bytes;
};

MeshCost meshCost(const CostModel& model) {
  const int a = ranksOfQueryGroup(model.problem()), ranks = model.ranks();
  double most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double scores = 0;
    for (int q = rank / a * a; q < rank / a * a + a; ++q) {
      for (int k = rank % a; k < ranks; k += a) scores += model.scores(q, k);
    }
    most = std::max(most, scores);
  }
  return {model.blockUs(most, false), model.blockUs(most, true), meshBytes(model, a)};
}

}  // namespace

/// Of all a x b the one with the fewest bytes: for as many key heads as query heads the square, for fewer one with
/// larger KV groups.
int ranksOfQueryGroup(const Problem& problem) {
  if (problem.desc.inner != 0) return static_cast<int>(problem.desc.inner);
  const CostModel model(problem, 1);
  const auto bytesOf = [&](int a) {
    const auto bytes = meshBytes(model, a);
    return bytes.forward() + (problem.training() ? bytes.backward() : 0);
  };
  const int ranks = problem.ranks();
  int best = 1;  // among equals the most square
  for (int a = 1; a * a <= ranks; ++a) {
    if (ranks % a == 0) best = a;
  }
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a == 0 && bytesOf(a) < bytesOf(best)) best = a;
  }
  return best;
}

Estimate estimateAttention2d(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto cost = meshCost(model);
  const auto& bytes = cost.bytes;
  return {model.sendUs(bytes.q) + model.sendUs(bytes.kv) + cost.forwardUs + model.sendUs(bytes.out),
          model.sendUs(bytes.gradientInputs) + model.sendUs(bytes.kv) + cost.backwardUs + model.sendUs(bytes.dq) +
              model.sendUs(bytes.sums),
          bytes.forward() + bytes.backward()};
}

Estimate estimateMesh(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto cost = meshCost(model);
  const auto& bytes = cost.bytes;
  const int a = ranksOfQueryGroup(problem), b = problem.ranks() / a;
  // The last send has nothing beside it.
  const auto ring = [&](int members, double all) {
    return members < 2 ? 0.0 : (members - 1) * model.sendUs(all / (members - 1));
  };
  const double last = a < 2 ? 0.0 : model.sendUs(bytes.out / (a - 1)),
               lastDq = a < 2 ? 0.0 : model.sendUs(bytes.dq / (a - 1));
  return {model.besideUs(cost.forwardUs, ring(a, bytes.q) + ring(b, bytes.kv) + ring(a, bytes.out) - last) + last,
          model.besideUs(cost.backwardUs, ring(a, bytes.gradientInputs) + ring(b, bytes.kv) + ring(a, bytes.dq) +
                                              ring(b, bytes.sums) - lastDq) +
              lastDq,
          bytes.forward() + bytes.backward()};
}

Estimate estimateDistAttn(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto& d = problem.desc;
  const int ranks = problem.ranks();
  const auto tokens = static_cast<double>(problem.queries.longest());
  const double rows = model.bytes(tokens, d.heads, 1, seqparFloat32);
  const double kv = model.kvBytes(tokens), sums = model.kvSumBytes(tokens), q = model.qBytes(tokens);
  const double out = model.bytes(tokens, d.heads, d.valueDim, seqparFloat32) + rows;
  const double inputs = q + model.outBytes(tokens) + model.rowBytes(tokens);
  const double dq = model.bytes(tokens, d.heads, d.headDim, seqparFloat32);
  Estimate estimate;
  for (int step = 0; step <= ranks / 2; ++step) {
    const bool helped = step > 0 && 2 * step != ranks;  // in this step ranks have helpers
    double scores = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank >= step) scores = std::max(scores, model.scores(rank, rank - step));
      if (rank < step && helped) scores = std::max(scores, model.scores(ranks + rank - step, rank));
    }
    const double there = step == 0 ? 0 : helped ? std::max(kv, q) : kv;
    const double thereBack = step == 0 ? 0 : helped ? std::max(kv, inputs) : kv;
    const double home = helped ? out : 0;
    const double homeBack = step == 0 ? 0 : helped ? std::max(sums, dq) : sums;
    estimate.forwardUs += model.besideUs(model.blockUs(scores, false), model.sendUs(there) + model.sendUs(home));
    estimate.backwardUs +=
        model.besideUs(model.blockUs(scores, true), model.sendUs(thereBack) + model.sendUs(homeBack));
    // An upper bound: no rank is at the dearer end in every step.
    estimate.bytes += there + home + thereBack + homeBack;
  }
  return estimate;
}

Estimate estimateStarTrail(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto& d = problem.desc;
  const int size = ranksOfTeam(problem), rows = problem.ranks() / (size * size);
  const auto tokens = static_cast<double>(problem.queries.longest()), others = tokens * (size - 1);
  const auto wire = problem.wireType();
  const double q = model.qBytes(others), out = model.outBytes(others), kv = model.kvBytes(others);
  const double dq = model.bytes(others, d.heads, d.headDim, wire), sums = model.kvSumBytes(others);
  const double partial = model.bytes(others, d.heads, d.valueDim, wire);
  const double numbers = model.bytes(others, d.heads, 1, seqparFloat32);
  const double teamKv = model.kvBytes(tokens * size), teamSums = model.kvSumBytes(tokens * size);
  const double moved = size > 1 ? teamKv : 0, movedSums = size > 1 ? teamSums : 0, sumsHome = rows > 1 ? teamSums : 0;
  const double load = model.sendUs(q) + model.sendUs(kv) + model.sendUs(moved);
  const double forwardRing = (rows - 1) * model.sendUs(teamKv);
  const double backwardRing = (rows - 1) * (model.sendUs(teamKv) + model.sendUs(teamSums));
  const double scores = model.mostScores();  // a team's rows, a part of their keys each
  return {load + model.besideUs(model.blockUs(scores, false), forwardRing) + model.sendUs(partial + numbers),
          load + model.sendUs(2 * out + numbers) + model.besideUs(model.blockUs(scores, true), backwardRing) +
              model.sendUs(sumsHome) + model.sendUs(dq) + model.sendUs(movedSums) + model.sendUs(sums),
          2 * q + dq + 2 * out + partial + 2 * numbers + 2 * kv + sums + 2 * moved + movedSums +
              (rows - 1) * (2 * teamKv + teamSums) + sumsHome};
}

}  // namespace seqpar::attn
