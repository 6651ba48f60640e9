// Distributed linear attention on one GPU: kernel arguments. Compiles everywhere.
//
// The operator, for each head, with token decays a_t (a vector of dk, a scalar, or 1):
//
//     S_t = diag(a_t) S_(t-1) + k_t v_t^T          o_t = scale S_t^T q_t          S_(-1) = initial
//
// (2405.21060). A rank's tokens are divided into segments, so that few heads fill a GPU. The map of a segment, S ->
// diag(decay) S + state, has the same form as the map of a rank, which All-Scan combines (ZeCO, arXiv 2507.01004).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arch/device.h"
#include "seqpar/types.h"

namespace seqpar::attn {

/// The shape of a_t.
enum class Gate {
  None,    ///< 1
  Head,    ///< exp of one value per head: [heads], fp32. RetNet, Lightning
  Token,   ///< exp of one value per token and head, fp32. Mamba-2, simple GLA
  Channel  ///< exp of dk values per token and head, fp32 or bf16. GLA
};

/// A tensor [batch][token][head][dimension] with its strides in elements; the last dimension is dense. Gates of
/// Gate::Token have no last dimension; their head stride is used.
template <class Pointer>
struct Strided {
  Pointer data = nullptr;
  int64_t batch = 0, token = 0, head = 0;
};
using Input = Strided<const void*>;
using Output = Strided<void*>;

/// Parameters of all passes, forward and backward. Pointers are to device memory.
struct LinearProblem {
  int64_t batch = 1;
  int64_t tokens = 0;         ///< of this rank; 0: states pass unchanged
  int heads = 0;              ///< of v, of the gate and of the states
  int qkHeads = 0;            ///< of q and k; divides heads: head h reads q/k head h / (heads / qkHeads)
  int dk = 0, dv = 0;         ///< multiples of 16; dk at most kMostKeyDimension
  int type = seqparBfloat16;  ///< a seqparDataType_t: of q, k, v, out and their gradients
  float scale = 1;
  Gate gate = Gate::None;
  int gateType = seqparFloat32;  ///< a seqparDataType_t: fp32; Gate::Channel also bf16
  Input q, k, v;
  Input gates;       ///< natural logarithms of a_t, at most 0; -inf discards the state, even NaN and infinity
  Input inputGates;  ///< factors of k_t v_t^T, [batch][token][head]; NULL: 1. Requires fusesInputGate()
  int inputGateType = seqparFloat32;  ///< a seqparDataType_t: fp32 or bf16
};

constexpr int kMostKeyDimension = 256;
constexpr int kChunkTokens = 64;  ///< segment bounds are multiples of it

/// Why no kernel supports `problem`; NULL: one does. 16-bit tensors and gates of Gate::Channel need addresses and
/// strides that are multiples of 16 bytes.
const char* whyNot(const LinearProblem& problem);

/// Whether all passes of the current device apply `inputGates` to `problem`; does not check its pointers. Otherwise the
/// values are multiplied before the passes (input_gate.h). Only in builds with CUDA.
bool fusesInputGate(const LinearProblem& problem);

/// A segment of a packed batch (batch 1): tokens of one sequence.
struct Span {
  int64_t begin = 0, end = 0;  ///< tokens of the rank
  int before = 0, after = 0;   ///< number of segments of the same sequence before and after it on this rank
  int32_t continues = 0;       ///< the sequence started on an earlier rank: the rank's incoming state is its state
  int32_t reachesEnd = 0;      ///< the rank's outgoing state is the state of this sequence
  int32_t order = 0;           ///< number of segments with earlier tokens
};

/// Division of each head's tokens: segment i has the tokens [begin + i * tokens, begin + (i + 1) * tokens) of the rank,
/// or those of spans[i].
struct Segments {
  int count = 1;  ///< segments with maps; at least 1, also without tokens
  /// Tokens of each segment except the last, a multiple of kChunkTokens. Packed: an upper bound.
  int64_t tokens = 0;
  int64_t begin = 0;  ///< first token of the first segment; another launch has the tokens before it (launchForward())
  /// Packed: number of further segments that are whole sequences, without incoming or outgoing states.
  int isolated = 0;
  const Span* spans = nullptr;  ///< packed: [count + isolated], in device memory; else NULL
};
SEQPAR_BOTH_INLINE int allSegments(const Segments& segments) {
  return segments.count + segments.isolated;
}

/// The columns of v per CTA; a head has ceil(dv / valueTile()) tiles.
int valueTile(const LinearProblem& problem);

/// A number of segments that gives `ctas` concurrent CTAs (ctasAtOnce(), or fewer) about equal work.
Segments cutIntoSegments(const LinearProblem& problem, int ctas);

/// For launchForward(), which may compute outputs of the first tokens, the lead, concurrently with pass 1 of the
/// others, on SMs that pass 1 leaves idle: segments are shorter then, and start after the lead. `lead`: the kernels
/// support that (supportsLead()).
Segments cutForward(const LinearProblem& problem, int ctas, bool lead);

/// Maps of segments in workspace: for each (batch, head) and segment, the state [dk][dv] and the log-decay, [dk] for
/// Gate::Channel and a scalar for the others.
struct StateMaps {
  float* states = nullptr;       ///< [batch][heads][segments][dk][dv]
  float* transitions = nullptr;  ///< [batch][heads][segments][transitionWidth()]
  float* lead = nullptr;         ///< [batch][heads][dk][dv]: the state after the lead, if segments start after one
};
SEQPAR_BOTH_INLINE int transitionWidth(const LinearProblem& problem) {
  return problem.gate == Gate::Channel ? problem.dk : 1;
}
size_t stateMapsSize(const LinearProblem& problem, const Segments& segments);  ///< in bytes, a multiple of 256
StateMaps stateMapsIn(void* workspace, const LinearProblem& problem, const Segments& segments);

/// The states in StateMaps::states; the log-decays are each segment's own in both cases.
enum class Maps : uint8_t {
  Prefix,     ///< the results of all earlier segments, for a zero state; backward: of all later ones
  PerSegment  ///< each segment's own result for a zero state
};

/// The format of StateMaps::states.
enum class MapFormat : uint8_t {
  RowMajor,  ///< [dk][dv]
  Registers  ///< the register layout of the sm_90 kernels; forward, Maps::PerSegment only
};

/// The tokens of a launch of outputs.
enum class Tokens : uint8_t {
  OfSegments,
  Lead  ///< those before the first segment, as one segment: pass 1 of the segments may still run
};

/// When results of earlier launches are visible to a kernel, which may start before they end (sequence.h).
enum class Visible : uint8_t {
  AfterWait,  ///< after griddepcontrol.wait
  AtStart     ///< when the kernel starts
};

/// The heads of each sequence of the batch that a launch processes, so that the states of some heads can be sent while
/// others are computed.
struct HeadRange {
  int first = 0;
  int count = 0;
};

/// Pass 1, forward. Afterwards `maps` contain for segment i, with Maps::Prefix: as state, the result of segments 0 ...
/// i-1 for a zero state (segment 0's is undefined; read it as 0); as log-decay, segment i's own. The state before
/// segment i is therefore states[i] + exp(transitions[0] + ... + transitions[i-1]) initial. Packed, this holds for the
/// segments of one sequence; the first segment of a sequence that starts on this rank has a log-decay of -inf. Outputs
/// and Gradients read these `maps`. state and logDecay are the arguments of seqparAllScan with seqparDecayLog: DIAG for
/// Gate::Channel, SCALAR for the others. A log-decay with a factor below 2^-126 (itself below -87.3) may be returned as
/// -inf. Without state and logDecay the last segment is not read, and its log-decay is undefined.
struct SegmentStates {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  StateMaps maps;
  float* state = nullptr;     ///< out: [batch][heads][dk][dv] of the rank; NULL: not written
  float* logDecay = nullptr;  ///< out: [batch][heads][transitionWidth()] of the rank; NULL: not written
  /// [batch][heads][dk][dv]: initial value of the rank's `state` instead of 0; `maps` exclude it. NULL: 0
  const float* base = nullptr;
  Maps content = Maps::Prefix;  ///< of `maps`, afterwards
  MapFormat format = MapFormat::RowMajor;
  bool allSegments = false;  ///< the last segment's map is computed even without state and logDecay
};

/// The most segments that Maps::PerSegment supports: each CTA reads the states of earlier segments, back to where
/// decays have forgotten them.
int maxPerSegment(const LinearProblem& problem);

/// The content of maps with which outputs are computed sooner on the current device: PerSegment for few segments,
/// because each CTA can combine their states itself; otherwise Prefix. Only in builds with CUDA.
Maps fastestMaps(const LinearProblem& problem, const Segments& segments);

/// Whether the current device runs outputs concurrently with pass 1 (cutForward()). Only in builds with CUDA.
bool supportsLead(const LinearProblem& problem);

/// Pass 3, forward, after pass 1 and the scan between ranks.
struct Outputs {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  StateMaps maps;                  ///< from pass 1
  const float* initial = nullptr;  ///< [batch][heads][dk][dv], the state before the rank's first token; NULL: 0
  Output out;                      ///< [batch][token][head][dv] of problem.type
  float* finalState = nullptr;     ///< out: [batch][heads][dk][dv], after the rank's last token; NULL: not written
  Maps content = Maps::Prefix;     ///< of `maps`, from SegmentStates
  Visible mapsVisible = Visible::AfterWait;  ///< `maps` and `initial`; launchOutputs() sets it
  bool storesMaps = false;                   ///< `maps` are afterwards as pass 1 writes them for Gradients
  MapFormat format = MapFormat::RowMajor;    ///< of `maps`; launchForward() sets it
  Tokens tokens = Tokens::OfSegments;        ///< launchForward() sets it
  float* workspace = nullptr;                ///< outputsWorkspaceSize() bytes
};
/// In bytes. 0 unless the kernels process keys in blocks of channels. Only in builds with CUDA.
size_t outputsWorkspaceSize(const LinearProblem& problem);

/// Pass 1, backward: the reverse direction. Afterwards `maps` contain for segment i, with Maps::Prefix: as state, the
/// result of segments i+1 ... for a zero gradient (the last segment's is undefined; read it as 0); as log-decay,
/// segment i's own. With y the gradient of the state after the rank's last token, the gradient of the state before its
/// first is diag(decay) y + stateGradient, with the forward's decay. Without stateGradient and logDecay the first
/// segment is not read, and its log-decay is undefined. Packed, the last segment of a sequence that ends on this rank
/// has a log-decay of -inf.
struct SegmentStateGradients {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  Input dOut;
  StateMaps maps;
  float* stateGradient = nullptr;  ///< out: [batch][heads][dk][dv]; NULL: not written
  float* logDecay = nullptr;       ///< out: as in pass 1 of the forward; NULL: not written
  Maps content = Maps::Prefix;     ///< of `maps`, afterwards
  bool allSegments = false;        ///< the first segment's map is computed even without stateGradient and logDecay
};

/// Launches of launchGradients(). With gradientsReadChunkStates() or gradientsSeldomReadMaps() they can be two calls;
/// otherwise States launches nothing.
enum class GradientsPart : uint8_t {
  Whole,
  States,      ///< those that read neither maps nor `finalGradient`: the scan of gradients may be in progress
  AfterStates  ///< the others
};

/// Pass 3, backward, after its pass 1 and the reverse scan. dq and dk have one tensor per head of v; the caller's plan
/// adds the tensors of heads that share a q/k head, or provides scratch for it (gradientsWorkspaceSize()).
struct Gradients {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  Input dOut;
  StateMaps before;                      ///< from pass 1 of the forward: read as in Outputs
  StateMaps after;                       ///< from pass 1 of the backward
  Maps content = Maps::Prefix;           ///< of both
  const float* initial = nullptr;        ///< as in Outputs
  const float* finalGradient = nullptr;  ///< [batch][heads][dk][dv], of the state after the last token; NULL: 0
  Output dq, dk, dv;                     ///< of problem.type; dq and dk [..][qkHeads][dk]
  Output dGates;                         ///< shaped like the gates, in the type below; Gate::Head: [heads], summed over
                                         ///< tokens
  int dGateType = seqparFloat32;
  Output dInputGates;         ///< of inputGateType, [batch][token][head]; without data: not written
  float* dInitial = nullptr;  ///< out: [batch][heads][dk][dv]; NULL: not written
  void* workspace = nullptr;  ///< gradientsWorkspaceSize() bytes
  GradientsPart part = GradientsPart::Whole;
};
size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments);

/// The number of SMs of the current device that launchGradients() leaves free when it starts before a scan ends; 0: it
/// does not overlap. Only in builds with CUDA.
int idleSmsOfGradients(const LinearProblem& problem, const Segments& segments);

class LaunchSequence;

/// A cudaStream_t, and the maximum number of concurrent CTAs (0: unlimited), so that kernels of the scan between ranks
/// can run too. `sequence` (sequence.h): the earlier launches of the call on the stream, to which launches are added;
/// NULL: none, and the launch starts after all earlier work.
struct Launch {
  void* stream = nullptr;
  int ctas = 0;
  LaunchSequence* sequence = nullptr;
};

/// The number of concurrent CTAs of the forward's kernels on the current device; 0: an error, or no device. Only in
/// builds with CUDA.
int ctasAtOnce(const LinearProblem& problem);

/// The most shared memory, in bytes, of a CTA of the kernels for any device from sm_80 on; those for sm_90 only use
/// more than other devices have. Only in builds with CUDA.
int forwardSharedBytes(const LinearProblem& problem);
int backwardSharedBytes(const LinearProblem& problem);

/// The launches. They return a cudaError_t, do not allocate or synchronize, can be captured, and return bitwise
/// identical results on every call. Only in builds with CUDA.
int launchSegmentStates(const SegmentStates& pass, const Launch& launch);
int launchOutputs(const Outputs& pass, const Launch& launch);
/// Both passes of the forward, with `pass` as for launchOutputs(): does not compute the rank's map.
int launchForward(const Outputs& pass, const Launch& launch);
int launchSegmentStateGradients(const SegmentStateGradients& pass, const Launch& launch);
int launchGradients(const Gradients& pass, const Launch& launch);

}  // namespace seqpar::attn
