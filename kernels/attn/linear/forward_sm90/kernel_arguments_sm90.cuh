// Arguments of the kernels of both passes, computed on the host from the launch arguments.
#pragma once

#include <type_traits>

#include "kernels/attn/linear/forward_sm90/outputs_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/segment_states_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/tensor_map_sm90.h"
#include "kernels/attn/linear/pairs.h"

namespace seqpar::attn::forward_sm90 {

inline int tilesOf(const LinearProblem& problem) {
  return (problem.dv + Shape::kColumns - 1) / Shape::kColumns;
}

inline bool encode16(CUtensorMap& map, const Input& tensor, int columns, int heads, const LinearProblem& problem) {
  return encodeMap(map, {tensor, problem.type, columns, heads, kSwizzleColumns, kChunk, true}, problem);
}

/// Whether the kernels for T support pairs of heads and input gates. In fp16, values times gates and decays, which they
/// round, may be too small or too large.
template <class T>
inline constexpr bool kHasFactors = !Numbers<T>::kRaises;
inline bool hasFactors(const LinearProblem& problem) {
  return problem.type == seqparFloat16 ? kHasFactors<Float16> : kHasFactors<Bfloat16>;
}

/// Whether pass 3 processes pairs of heads.
inline bool pairs(const Outputs& pass) {
  return hasFactors(pass.problem) && pairsHeads(pass.problem) && pass.heads.first % 2 == 0 && pass.heads.count % 2 == 0;
}

/// Whether pass 1 supports pairs. They have half as many items.
inline bool pairs(const SegmentStates& pass) {
  return hasFactors(pass.problem) && pairsHeads(pass.problem) && pass.heads.first % 2 == 0 && pass.heads.count % 2 == 0;
}

/// Tensor map of channel gates; the TMA does not read other gates. `columns`: of a box.
inline bool encodeGates(CUtensorMap& map, const LinearProblem& problem, int columns = Shape::kChannels) {
  return problem.gate != Gate::Channel ||
         encodeMap(map, {problem.gates, problem.gateType, problem.dk, problem.heads, columns, kChunk, false}, problem);
}

/// For the first `segments` segments, of pairs of heads if `paired`; backward: for the last ones, with queries as keys
/// and dOut as values. Returns false if the TMA does not support the tensors.
inline bool setArguments(StatesKernel& kernel, const SegmentStates& pass, int segments, const Input& keys,
                         const Input& values, bool paired = false) {
  const LinearProblem& problem = pass.problem;
  const int tiles = tilesOf(problem) * keyBlocks(problem.dk);
  HeadRange heads = pass.heads;
  if (paired) heads.count = (heads.count + 1) / 2;
  const int gateColumns = joinsShortHeads(problem) ? kSwizzleColumns : Shape::kChannels;
  kernel = {pass, segments, itemCount(problem, heads, segments, tiles), {}, {}, {}};
  return kernel.items == 0 || (encode16(kernel.keys, keys, problem.dk, problem.qkHeads, problem) &&
                               encode16(kernel.values, values, problem.dv, problem.heads, problem) &&
                               encodeGates(kernel.gates, problem, gateColumns));
}

inline bool setArguments(OutputsKernel& kernel, const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  HeadRange heads = pass.heads;
  const bool joined = joinsShortHeads(problem);
  if (joined || pairs(pass)) heads.count = (heads.count + 1) / 2;
  const int64_t items = itemCount(problem, heads, allSegments(pass.segments), tilesOf(problem));
  kernel = {pass, items, {}, {}, {}, {}, {}};
  const Input out = {pass.out.data, pass.out.batch, pass.out.token, pass.out.head};
  return items == 0 || (encode16(kernel.queries, problem.q, problem.dk, problem.qkHeads, problem) &&
                        encode16(kernel.keys, problem.k, problem.dk, problem.qkHeads, problem) &&
                        encode16(kernel.values, problem.v, problem.dv, problem.heads, problem) &&
                        encodeGates(kernel.gates, problem, joined ? kSwizzleColumns : Shape::kChannels) &&
                        encode16(kernel.out, out, problem.dv, problem.heads, problem));
}

/// Calls act() with the kind of gates as a constant.
template <class Act>
int dispatch(const LinearProblem& problem, const Act& act) {
  if (problem.gate != Gate::Channel) return act(std::integral_constant<GateKind, GateKind::Uniform>());
  if (problem.gateType == seqparFloat32) return act(std::integral_constant<GateKind, GateKind::Full>());
  return act(std::integral_constant<GateKind, GateKind::Half>());
}

}  // namespace seqpar::attn::forward_sm90
