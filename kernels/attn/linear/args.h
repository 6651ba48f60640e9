// Distributed linear attention on one GPU: what its kernels take. Compiles everywhere.
//
// The operator, for each head, with token decays a_t (a vector of dk, a number, or 1):
//
//     S_t = diag(a_t) S_(t-1) + k_t v_t^T          o_t = scale S_t^T q_t          S_(-1) = initial
//
// Gated linear attention (arXiv 2312.06635), RetNet (2307.08621), Lightning Attention (2401.04658), Mamba-2
// (2405.21060). A rank's tokens are cut into segments, so that few heads fill a GPU; the map of a segment, S ->
// diag(decay) S + state, is of the same kind as the map of a rank, and All-Scan passes on the latter (ZeCO, arXiv
// 2507.01004).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/both.h"
#include "seqpar/types.h"

namespace seqpar::attn {

/// What a_t is.
enum class Gate {
  None,    ///< 1
  Head,    ///< exp of one number a head: [heads], fp32. RetNet, Lightning
  Token,   ///< exp of one number a token and head, fp32. Mamba-2, simple GLA
  Channel  ///< exp of dk numbers a token and head, fp32 or bf16. GLA
};

/// A tensor [batch][token][head][dimension] with its strides in elements; the last dimension is dense. Gates of
/// Gate::Token have no last dimension, and their head stride counts.
template <class Pointer>
struct Strided {
  Pointer data = nullptr;
  int64_t batch = 0, token = 0, head = 0;
};
using Input = Strided<const void*>;
using Output = Strided<void*>;

/// What all passes, forward and backward, have in common. Pointers are to device memory.
struct LinearProblem {
  int64_t batch = 1;
  int64_t tokens = 0;         ///< of this rank; 0: states pass through
  int heads = 0;              ///< of v, of the gate and of the states
  int qkHeads = 0;            ///< of q and k; divides heads: head h reads q/k head h / (heads / qkHeads)
  int dk = 0, dv = 0;         ///< multiples of 16; dk at most kMostKeyDimension
  int type = seqparBfloat16;  ///< a seqparDataType_t: of q, k, v, out and their gradients
  float scale = 1;
  Gate gate = Gate::None;
  int gateType = seqparFloat32;  ///< a seqparDataType_t: fp32; Gate::Channel also bf16
  Input q, k, v;
  Input gates;  ///< natural logarithms of a_t, at most 0; -inf forgets the state, NaN and infinity included
  /// Packed sequences, for batch 1: the tokens at which sequences begin, increasing; others than 0 ... tokens-1 do not
  /// count. The state before such a token is 0. NULL: none begins here.
  const int64_t* starts = nullptr;
  int64_t startCount = 0;
};

constexpr int kMostKeyDimension = 256;
constexpr int kChunkTokens = 64;  ///< segments are cut at multiples of it

/// Why no kernel can do `problem`; NULL: there is one. 16-bit tensors need addresses and strides that are multiples of
/// 16 bytes, and so do gates of Gate::Channel.
const char* whyNot(const LinearProblem& problem);

/// How each head's tokens are cut: segment i has the tokens [begin + i * tokens, begin + (i + 1) * tokens) of the rank.
struct Segments {
  int count = 1;       ///< at least 1, also for no tokens
  int64_t tokens = 0;  ///< of each but the last; a multiple of kChunkTokens
  int64_t begin = 0;   ///< of the first; another launch has the tokens before it (launchForward())
};

/// The columns of v that one CTA works on; a head has ceil(dv / valueTile()) of them.
int valueTile(const LinearProblem& problem);

/// As many segments as give `ctas` CTAs at once (ctasAtOnce(), or less) about the same work.
Segments cutIntoSegments(const LinearProblem& problem, int ctas);

/// The same for launchForward(), which may make outputs of some first tokens, the lead, beside pass 1 of the others, on
/// SMs that it leaves idle: segments are shorter for it, and begin after the lead. `beside`: kernels can do that
/// (leadsOutputs()).
Segments cutForward(const LinearProblem& problem, int ctas, bool beside);

/// Maps of segments, as workspace holds them: of each (batch, head), of each segment, the state [dk][dv] and the
/// log-decay, [dk] for Gate::Channel and a number for the others.
struct SegmentMaps {
  float* states = nullptr;     ///< [batch][heads][segments][dk][dv]
  float* logDecays = nullptr;  ///< [batch][heads][segments][decayWidth()]
  float* lead = nullptr;       ///< [batch][heads][dk][dv], where segments begin after a lead: the state after it
};
SEQPAR_BOTH_INLINE int decayWidth(const LinearProblem& problem) {
  return problem.gate == Gate::Channel ? problem.dk : 1;
}
size_t segmentMapsSize(const LinearProblem& problem, const Segments& segments);  ///< in bytes, a multiple of 256
SegmentMaps segmentMapsIn(void* workspace, const LinearProblem& problem, const Segments& segments);

/// The heads of each sequence of the batch that a launch works on, so that the states of some heads can go to the other
/// ranks while others are computed.
struct HeadRange {
  int first = 0;
  int count = 0;
};

/// Pass 1, forward. Afterwards `maps` hold, of segment i: as state, what segments 0 ... i-1 leave of a state of 0 (that
/// of segment 0 is undefined; read it as 0); as log-decay, segment i's own. So the state before segment i is states[i]
/// + exp(logDecays[0] + ... + logDecays[i-1]) initial. Outputs and Gradients take these `maps`. state and logDecay are
/// what seqparAllScan takes, with seqparDecayLog: DIAG for Gate::Channel, SCALAR for the others. A log-decay whose
/// factor is below 2^-126, itself below -87.3, may come as -inf. Without state and logDecay the last segment is not
/// read, and its log-decay is undefined.
struct SegmentStates {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  SegmentMaps maps;
  float* state = nullptr;     ///< out: [batch][heads][dk][dv] of the rank; NULL: not wanted
  float* logDecay = nullptr;  ///< out: [batch][heads][decayWidth()] of the rank; NULL: not wanted
  /// [batch][heads][dk][dv]: `state` is what the tokens make of this, in place of 0; `maps` stay without it. NULL: 0
  const float* base = nullptr;
  /// `maps` keep what each segment by itself leaves of a state of 0, for Outputs and Gradients with the same; else as
  /// said above.
  bool apart = false;
  bool packed = false;          ///< `maps`, apart, for Outputs with the same: as these kernels' threads have them
  bool allSegments = false;     ///< the last segment's map is made without state and logDecay too
  bool afterGradients = false;  ///< comes right behind a SegmentStateGradients of other maps, or what passes these on
};

/// Up to how many segments that is so: each CTA reads the states of the segments before its own, as far as decays leave
/// something of them.
int mostApart(const LinearProblem& problem);

/// Whether the outputs are sooner there with `apart`, on the current device: few segments, whose states each CTA can
/// put together itself. Only in builds with CUDA.
bool betterApart(const LinearProblem& problem, const Segments& segments);

/// Whether the current device starts outputs beside pass 1 (cutForward()). Only in builds with CUDA.
bool leadsOutputs(const LinearProblem& problem);

/// Pass 3, forward, after pass 1 and the scan between ranks.
struct Outputs {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  SegmentMaps maps;                ///< as pass 1 left them
  const float* initial = nullptr;  ///< [batch][heads][dk][dv], the state before the rank's first token; NULL: 0
  Output out;                      ///< [batch][token][head][dv] of problem.type
  float* finalState = nullptr;     ///< out: [batch][heads][dk][dv], after the rank's last token; NULL: not wanted
  bool apart = false;              ///< `maps` as SegmentStates leaves them with `apart`
  /// Comes right behind the first rank's StateScan (state_scan.h): `maps` are there when it starts.
  bool mapsAreThere = false;
  bool keepsMaps = false;  ///< `maps` are there afterwards as pass 1 leaves them for Gradients
  bool packed = false;     ///< `maps` as SegmentStates leaves them with `packed`; launchForward() finds out itself
  bool leads = false;      ///< one segment, right behind pass 1 of tokens after it, beside which it may start
};

/// Pass 1, backward: the same in reverse. Afterwards `maps` hold, of segment i: as state, what segments i+1 ... leave
/// of a gradient of 0 (that of the last segment is undefined; read it as 0); as log-decay, segment i's own. With y the
/// gradient of the state after the rank's last token, the gradient of the state before its first is diag(decay) y +
/// stateGradient, with the decay of the forward. Without stateGradient and logDecay the first segment need not be read,
/// and its log-decay is undefined.
struct SegmentStateGradients {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  Input dOut;
  SegmentMaps maps;
  float* stateGradient = nullptr;  ///< out: [batch][heads][dk][dv]; NULL: not wanted
  float* logDecay = nullptr;       ///< out: as pass 1 of the forward has it; NULL: not wanted
  bool apart = false;              ///< as SegmentStates has it; for Gradients with the same
  bool allSegments = false;        ///< the first segment's map is made without stateGradient and logDecay too
  bool afterStates = false;        ///< comes right behind a SegmentStates of other maps, beside which it may start
};

/// Pass 3, backward, after its pass 1 and the reverse scan. dq and dk have one tensor a head of v; the caller's plan
/// adds those of heads that share a q/k head, or gives scratch for it (gradientsWorkspaceSize()).
struct Gradients {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  Input dOut;
  SegmentMaps before;                    ///< as pass 1 of the forward left them: read like Outputs reads them
  SegmentMaps after;                     ///< as pass 1 of the backward left them
  bool apart = false;                    ///< both as passes leave them with `apart`
  bool early = false;                    ///< a pass 1 comes right before, beside which it may start; with `apart`
  bool beforeIsThere = false;            ///< `before` are of an earlier call, and are only read
  const float* initial = nullptr;        ///< as for outputs()
  const float* finalGradient = nullptr;  ///< [batch][heads][dk][dv], of the state after the last token; NULL: 0
  Output dq, dk, dv;                     ///< of problem.type; dq and dk [..][qkHeads][dk]
  Output dGates;                         ///< shaped as the gates, in the type below; Gate::Head: [heads], added up
  int dGateType = seqparFloat32;
  float* dInitial = nullptr;  ///< out: [batch][heads][dk][dv]; NULL: not wanted
  void* workspace = nullptr;  ///< gradientsWorkspaceSize() bytes
};
size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments);

/// How many SMs of the current device launchGradients() leaves to others where it starts `early`; 0 also where it does
/// not. Only in builds with CUDA.
int smsBesideGradients(const LinearProblem& problem, const Segments& segments);

/// A cudaStream_t, and how many CTAs a launch may have at once (0: as many as there is work), so that kernels of the
/// scan between ranks find room.
struct Launch {
  void* stream = nullptr;
  int ctas = 0;
};

/// How many CTAs of the forward's kernels the current device has at once; 0: an error, or no device. Only in builds
/// with CUDA.
int ctasAtOnce(const LinearProblem& problem);

/// The launches. They return a cudaError_t, allocate nothing, do not synchronize, can be captured, and give the same
/// bits each time. Only in builds with CUDA.
int launchSegmentStates(const SegmentStates& pass, const Launch& launch);
int launchOutputs(const Outputs& pass, const Launch& launch);
/// Both passes of the forward, `pass` as for launchOutputs(): no rank's map is wanted.
int launchForward(const Outputs& pass, const Launch& launch);
int launchSegmentStateGradients(const SegmentStateGradients& pass, const Launch& launch);
int launchGradients(const Gradients& pass, const Launch& launch);

}  // namespace seqpar::attn
