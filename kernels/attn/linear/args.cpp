#include "kernels/attn/linear/args.h"

#include <algorithm>

namespace seqpar::attn {
namespace {

constexpr int64_t kMostSegments = 128;
constexpr int64_t kLeastTokens = 256;    // per segment, so that its map is small compared with its inputs
constexpr int64_t kOverheadTokens = 96;  // cost of a segment's map, in tokens

int64_t roundUp(int64_t number, int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

bool aligned(const Input& tensor, int64_t elementSize) {
  const auto multiple = [&](int64_t stride) { return stride * elementSize % 16 == 0; };
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && multiple(tensor.batch) && multiple(tensor.token) &&
         multiple(tensor.head);
}

int64_t mapsOf(const LinearProblem& problem, const Segments& segments) {
  return problem.batch * problem.heads * segments.count;
}

size_t statesSize(const LinearProblem& problem, const Segments& segments) {
  return static_cast<size_t>(
      roundUp(mapsOf(problem, segments) * problem.dk * problem.dv * int64_t{sizeof(float)}, 256));
}

}  // namespace

const char* whyNot(const LinearProblem& problem) {
  const auto fits = [](int dimension) { return dimension >= 16 && dimension % 16 == 0; };
  if (problem.batch < 0 || problem.tokens < 0 || problem.heads < 1) return "a negative size, or no heads";
  if (problem.qkHeads < 1 || problem.heads % problem.qkHeads != 0) return "heads are not a multiple of q/k heads";
  if (!fits(problem.dk) || problem.dk > kMostKeyDimension) return "dk is not a multiple of 16 from 16 to 256";
  if (!fits(problem.dv)) return "dv is not a multiple of 16";
  const bool full = problem.type == seqparFloat32;
  if (!full && problem.type != seqparBfloat16 && problem.type != seqparFloat16) return "an unknown type of q, k and v";
  const bool perChannel = problem.gate == Gate::Channel;
  if (problem.gateType != seqparFloat32 && !(perChannel && problem.gateType == seqparBfloat16)) {
    return "gates are neither fp32 nor, for each channel, bf16";
  }
  if (problem.gate != Gate::None && problem.gates.data == nullptr) return "there are no gates";
  if (full) return nullptr;
  if (!aligned(problem.q, 2) || !aligned(problem.k, 2) || !aligned(problem.v, 2)) {
    return "addresses or strides of q, k or v are not multiples of 16 bytes";
  }
  if (perChannel && !aligned(problem.gates, problem.gateType == seqparFloat32 ? 4 : 2)) {
    return "the address or strides of the gates are not multiples of 16 bytes";
  }
  return nullptr;
}

int valueTile(const LinearProblem& problem) {
  return problem.dk <= 64 ? 64 : 128;
}

Segments cutIntoSegments(const LinearProblem& problem, int ctas) {
  const int64_t tiles = (problem.dv + valueTile(problem) - 1) / valueTile(problem);
  const int64_t items = std::max<int64_t>(problem.batch * problem.heads * tiles, 1);
  const int64_t most = std::clamp<int64_t>(problem.tokens / kLeastTokens, 1, kMostSegments);
  Segments best;
  int64_t bestCost = INT64_MAX;
  for (int64_t count = 1; count <= most; ++count) {
    const int64_t tokens = std::max<int64_t>(roundUp((problem.tokens + count - 1) / count, kChunkTokens), kChunkTokens);
    if ((count - 1) * tokens >= problem.tokens && count > 1) continue;  // the last segment would be empty
    const int64_t rounds = (items * count + ctas - 1) / ctas;
    const int64_t cost = rounds * (tokens + (count > 1 ? kOverheadTokens : 0));
    if (cost < bestCost) {
      bestCost = cost;
      best.count = static_cast<int>(count);
      best.tokens = tokens;
    }
  }
  return best;
}

int maxPerSegment(const LinearProblem& problem) {
  return problem.gate == Gate::None ? 4 : 8;
}

Segments cutForward(const LinearProblem& problem, int ctas, bool lead) {
  const Segments equal = cutIntoSegments(problem, ctas);
  const int64_t tiles = (problem.dv + valueTile(problem) - 1) / valueTile(problem);
  const int64_t items = std::max<int64_t>(problem.batch * problem.heads * tiles, 1), count = ctas / items;
  if (!lead || count < 2 || count > maxPerSegment(problem)) return equal;
  // The lead's outputs take as long as pass 1 of a segment if the lead has this percentage of a segment's tokens: pass
  // 1 is faster if it reads no decays. It may also end early if decays forget.
  const bool reads = problem.gate == Gate::Token;
  const int64_t percent = reads ? 55 : 30, most = reads ? 12 : 8;
  const int64_t chunks = (problem.tokens + kChunkTokens - 1) / kChunkTokens;
  const auto ceiling = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t each = std::max(ceiling(chunks - most, count), ceiling(chunks * 100, count * 100 + percent));
  const int64_t tokens = each * kChunkTokens;
  if (tokens < kLeastTokens || each * count >= chunks || tokens >= equal.tokens) return equal;
  return {static_cast<int>(count), tokens, (chunks - each * count) * kChunkTokens};
}

size_t stateMapsSize(const LinearProblem& problem, const Segments& segments) {
  const int64_t decays = mapsOf(problem, segments) * transitionWidth(problem) * int64_t{sizeof(float)};
  return statesSize(problem, segments) + static_cast<size_t>(roundUp(decays, 256)) +
         (segments.begin > 0 ? statesSize(problem, {}) : 0);
}

StateMaps stateMapsIn(void* workspace, const LinearProblem& problem, const Segments& segments) {
  StateMaps maps;
  maps.states = static_cast<float*>(workspace);
  char* at = static_cast<char*>(workspace) + statesSize(problem, segments);
  if (segments.begin > 0) {
    maps.lead = reinterpret_cast<float*>(at);
    at += statesSize(problem, {});
  }
  maps.transitions = reinterpret_cast<float*>(at);
  return maps;
}

}  // namespace seqpar::attn
