#include "attn/problem/problem.h"

#include <algorithm>
#include <cmath>

#include "attn/boundary.h"
#include "attn/linear/families/family.h"
#include "attn/packing.h"
#include "attn/problem/mask.h"
#include "base/versioned.h"

namespace seqpar::attn {
namespace {

[[noreturn]] void refuse(const char* call, const char* field, int64_t value, const std::string& expected) {
  fail(seqparInvalidArgument, call, ": desc->", field, " is ", value, ", expected ", expected);
}

void requireAtLeast(const char* call, const char* field, int64_t value, int64_t least) {
  if (value < least) refuse(call, field, value, concat("at least ", least));
}

void requireRange(const char* call, const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) refuse(call, field, value, concat(least, " to ", most));
}

void requireFinite(const char* call, const char* field, float value) {
  if (!std::isfinite(value)) {
    fail(seqparInvalidArgument, call, ": desc->", field, " is ", value, ", expected a finite number");
  }
}

/// Rejects sizes near overflow of any array's bytes. Linear attention stores states at many tokens.
void requireSize(const char* call, const seqparAttnDesc_t& d) {
  constexpr int64_t kMost = int64_t{1} << 52;
  const bool softmax = d.family == seqparAttnSoftmax;
  const int64_t ofHead = softmax ? std::max(d.headDim, d.valueDim) : d.headDim;
  int64_t product = 1;
  for (const int64_t size : {d.batch, std::max(d.tokens, d.kvTokens), d.heads, ofHead, softmax ? 1 : d.valueDim}) {
    if (size > 0 && product > kMost / size) {
      fail(seqparInvalidArgument, call, ": desc's sizes overflow: batch ", d.batch, " * tokens ",
           std::max(d.tokens, d.kvTokens), " * heads ", d.heads,
           softmax ? concat(" * length ", ofHead) : concat(" * headDim ", d.headDim, " * valueDim ", d.valueDim),
           " is more than ", kMost);
    }
    product *= std::max<int64_t>(1, size);
  }
}

/// Completes and checks the fields for heads and numeric types.
void readNumbers(const char* call, seqparAttnDesc_t& d) {
  requireRange(call, "family", d.family, seqparAttnSoftmax, SEQPAR_ATTN_FAMILIES - 1);
  requireAtLeast(call, "batch", d.batch, 1);
  requireAtLeast(call, "heads", d.heads, 1);
  if (d.kvHeads == 0) d.kvHeads = d.heads;
  requireAtLeast(call, "kvHeads", d.kvHeads, 0);
  if (d.heads % d.kvHeads != 0) refuse(call, "kvHeads", d.kvHeads, concat("a divisor of heads, ", d.heads, ", or 0"));
  requireAtLeast(call, "headDim", d.headDim, 1);
  if (d.valueDim == 0) d.valueDim = d.headDim;
  requireAtLeast(call, "valueDim", d.valueDim, 0);
  requireRange(call, "dataType", d.dataType, seqparFloat32, seqparBfloat16);
  for (int i = 0; i < SEQPAR_ATTN_MAX_GATES; ++i) {
    const int type = d.gateTypes[i];
    if (type == seqparFloat32 || type == seqparBfloat16) continue;
    refuse(call, concat("gateTypes[", i, "]").c_str(), type,
           concat(seqparFloat32, " (fp32) or ", seqparBfloat16, " (bf16)"));
  }
  requireRange(call, "wireType", d.wireType, seqparFloat32, seqparBfloat16);
  requireFinite(call, "scale", d.scale);
  if (d.scale == 0) d.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d.headDim)));
  requireRange(call, "training", d.training, 0, 1);
  requireRange(call, "deterministic", d.deterministic, 0, 1);
  requireRange(call, "reserve", d.reserve, 0, 2);
  requireRange(call, "normalize", d.normalize, 0, 1);
  requireRange(call, "inputGate", d.inputGate, 0, 1);
}

/// `field` is 1 only with the linear families that take it.
void requireFamily(const char* call, const char* field, int value, int family, bool (linear::Family::*takes)() const) {
  const linear::Family* const row = linear::findFamily(family);
  if (value == 0 || (row != nullptr && (row->*takes)())) return;
  std::string expected;
  for (const auto& one : linear::families()) {
    if ((one.*takes)()) expected += concat(", ", static_cast<int>(one.id), " (", one.name, ")");
  }
  fail(seqparInvalidUsage, call, ": desc->", field, " is 1 with family ", family,
       ", expected 0, or one of the families", expected.substr(1));
}

void readMask(const char* call, seqparAttnDesc_t& d) {
  requireRange(call, "mask", d.mask, seqparAttnFull, seqparAttnCausal);
  requireAtLeast(call, "windowLeft", d.windowLeft, SEQPAR_ATTN_NO_WINDOW);
  requireAtLeast(call, "windowRight", d.windowRight, SEQPAR_ATTN_NO_WINDOW);
  requireFinite(call, "softcap", d.softcap);
  if (d.softcap < 0) {
    fail(seqparInvalidArgument, call, ": desc->softcap is ", d.softcap, ", expected 0 (none) or a positive number");
  }
  requireRange(call, "sinks", d.sinks, 0, 1);
  if (d.family == seqparAttnSoftmax) return;
  if (d.windowLeft != SEQPAR_ATTN_NO_WINDOW || d.windowRight != SEQPAR_ATTN_NO_WINDOW || d.softcap != 0 ||
      d.sinks != 0) {
    fail(seqparInvalidUsage, call, ": desc->windowLeft, windowRight, softcap and sinks are ", d.windowLeft, ", ",
         d.windowRight, ", ", d.softcap, " and ", d.sinks, ", expected none of them: linear attention has no softmax");
  }
  if (d.kvTokens != 0) refuse(call, "kvTokens", d.kvTokens, "0: linear attention has no cross-attention");
}

Sharding readLayout(const char* call, const char* field, const seqparLayout_t* given, int ranks) {
  const seqparLayout_t defaults = SEQPAR_LAYOUT_INITIALIZER;
  const auto layout = readVersioned(call, field, given, defaults);
  // First, since with a wrong rank count the lengths of the shards could take minutes, or all memory.
  if (layout.ranks != ranks) {
    fail(seqparInvalidArgument, call, ": ", field, "->ranks is ", layout.ranks, ", expected ", ranks,
         ", the ranks of the communicator");
  }
  return Sharding(call, layout);
}

void readComm(const char* call, Problem& problem) {
  problem.info.nranks = 1;
  problem.info.nodes = 1;
  problem.info.device = SEQPAR_HOST_DEVICE;
  if (problem.comm == nullptr) return;
  problem.info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(problem.comm, &problem.info), call, nullptr);
  problem.plan = SEQPAR_PLAN_INFO_INITIALIZER;
  require(seqparPlanQuery(problem.comm, &problem.plan), call, nullptr);
  problem.nodeLink = SEQPAR_LINK_INFO_INITIALIZER;
  require(seqparLinkQuery(problem.comm, seqparLinkNode, &problem.nodeLink), call, nullptr);
}

}  // namespace

Visibility Problem::visibility() const {
  Visibility v;
  if (desc.windowLeft != SEQPAR_ATTN_NO_WINDOW) v.left = desc.windowLeft;
  if (desc.mask == seqparAttnCausal) {
    v.right = 0;
  } else if (desc.windowRight != SEQPAR_ATTN_NO_WINDOW) {
    v.right = desc.windowRight;
  }
  if (crossAttention()) v.shift = keys.tokens() - queries.tokens();
  v.cuSeqlens = cuSeqlens;
  v.slices = slices;
  return v;
}

std::vector<Rectangle> Problem::rectangles(int queryRank, int keyRank) const {
  return rectanglesOf(queries.runsOf(queryRank), keys.runsOf(keyRank), visibility());
}

Problem readProblem(const char* call, const seqparAttnDesc_t* given, seqparComm_t comm) {
  Problem problem;
  problem.comm = comm;
  const seqparAttnDesc_t defaults = SEQPAR_ATTN_DESC_INITIALIZER;
  auto& d = problem.desc = readVersioned(call, "desc", given, defaults);
  readComm(call, problem);
  const int ranks = problem.ranks();
  readNumbers(call, d);
  readMask(call, d);
  requireFamily(call, "normalize", d.normalize, d.family, &linear::Family::isDelta);
  requireFamily(call, "inputGate", d.inputGate, d.family, &linear::Family::takesInputGate);
  requireAtLeast(call, "inner", d.inner, 0);
  if (d.inner != 0 && ranks % d.inner != 0) {
    refuse(call, "inner", d.inner, concat("a divisor of the communicator's ", ranks, " ranks, or 0"));
  }
  requireRange(call, "ulyssesOutside", d.ulyssesOutside, 0, 1);

  requireRange(call, "kvTokens", d.kvTokens, 0, int64_t{1} << 48);
  if (d.layout != nullptr && d.tokensOfRanks != nullptr) {
    fail(seqparInvalidArgument, call, ": desc->layout and desc->tokensOfRanks are both set, expected at most one");
  }
  if (d.layout != nullptr) {
    problem.hasLayout = true;
    problem.queries = readLayout(call, "desc->layout", d.layout, ranks);
    d.tokens = problem.queries.tokens();
  } else if (d.tokensOfRanks != nullptr) {
    problem.hasLayout = true;
    problem.tokensOfRanks = readLengths(call, d.tokensOfRanks, ranks);
    problem.queries = Sharding(problem.tokensOfRanks);
    d.tokens = problem.queries.tokens();
  }
  requireRange(call, "tokens", d.tokens, 0, int64_t{1} << 48);
  if (d.kvLayout != nullptr) {
    if (d.kvTokens == 0) {
      fail(seqparInvalidArgument, call, ": desc->kvLayout is set with kvTokens 0, expected the number of its tokens");
    }
    problem.hasKvLayout = true;
    problem.keys = readLayout(call, "desc->kvLayout", d.kvLayout, ranks);
    if (problem.keys.tokens() != d.kvTokens) {
      refuse(call, "kvTokens", d.kvTokens, concat(problem.keys.tokens(), ", the tokens of kvLayout"));
    }
  }
  if (problem.hasLayout && !problem.hasKvLayout && d.kvTokens != 0 && problem.queries.kind() == seqparPieces) {
    fail(seqparInvalidArgument, call, ": desc->kvLayout is NULL with a layout of pieces, expected the layout of keys");
  }
  if (!problem.softmax() && problem.hasLayout && !problem.queries.contiguous()) {
    fail(seqparInvalidUsage, call, ": desc->layout is not contiguous, expected a contiguous one: linear attention");
  }
  requireSize(call, d);
  problem.cuSeqlens = readPacking(call, d.sequences, d.cuSeqlens, d.batch, d.tokens);
  if (problem.packed() && d.kvTokens != 0) refuse(call, "kvTokens", d.kvTokens, "0 with packed sequences");
  problem.slices = readSlices(call, d);
  problem.sliceNumbers = numbersOf(d);
  if (d.kernel != nullptr) {
    const seqparAttnKernel_t none = SEQPAR_ATTN_KERNEL_INITIALIZER;
    problem.kernel = readVersioned(call, "desc->kernel", d.kernel, none);
    if (problem.kernel.forward == nullptr || (d.training != 0 && problem.kernel.backward == nullptr)) {
      fail(seqparInvalidArgument, call, ": desc->kernel->", problem.kernel.forward == nullptr ? "forward" : "backward",
           " is NULL, expected a function");
    }
    if (!problem.softmax()) {
      fail(seqparInvalidUsage, call, ": desc->kernel is set, expected NULL: linear attention has no block kernel");
    }
  }
  d.layout = d.kvLayout = nullptr;
  d.tokensOfRanks = d.cuSeqlens = nullptr;
  d.slice = nullptr;
  d.kernel = nullptr;
  return problem;
}

}  // namespace seqpar::attn
