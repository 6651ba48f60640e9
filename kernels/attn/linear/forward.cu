#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/attn/linear/args.h"
#include "kernels/attn/linear/fold.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/forward_with_maps.h"
#include "kernels/attn/linear/from_zero.h"
#include "kernels/attn/linear/instances.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/numbers.cuh"
#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/save_initial.h"
#include "kernels/attn/linear/scan_maps.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn {
namespace {

/// Calls act(T(), dk as a constant, whether gates are per channel), for 16-bit types.
template <class T, class Act>
int dispatchDk(const LinearProblem& problem, const Act& act) {
  const auto gate = [&](auto dk) {
    return problem.gate == Gate::Channel ? act(T(), dk, std::true_type()) : act(T(), dk, std::false_type());
  };
  if (problem.dk <= 64) return gate(std::integral_constant<int, 64>());
  if (problem.dk <= 128) return gate(std::integral_constant<int, 128>());
  return gate(std::integral_constant<int, 256>());
}
template <class Act>
int dispatch(const LinearProblem& problem, const Act& act) {
  return problem.type == seqparFloat16 ? dispatchDk<Float16>(problem, act) : dispatchDk<Bfloat16>(problem, act);
}

constexpr int kMostFusedDimension = 128;

bool allowed(const LinearProblem& problem, const HeadRange& heads) {
  return whyNot(problem) == nullptr && heads.first >= 0 && heads.count >= 0 &&
         heads.first + heads.count <= problem.heads;
}

/// Rows are stored 16 bytes at a time.
bool aligned(const LinearProblem& problem, const Output& out) {
  if (problem.type == seqparFloat32) return true;
  return reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && out.batch % 8 == 0 && out.token % 8 == 0 &&
         out.head % 8 == 0;
}

}  // namespace

#ifndef SEQPAR_SM90
namespace forward_sm90 {
bool fits(const LinearProblem&) {
  return false;
}
int ctasAtOnce(const LinearProblem&) {
  return 0;
}
bool segmentStates(const SegmentStates&, int, const Launch&, int&, int*) {
  return false;
}
bool segmentStateGradients(const SegmentStateGradients&, int, const Launch&, int&, int*) {
  return false;
}
bool packs(const Outputs&) {
  return false;
}
size_t workspaceSize(const LinearProblem&) {
  return 0;
}
bool outputs(const Outputs&, const Launch&, int&) {
  return false;
}
size_t chunkStatesSize(const LinearProblem&) {
  return 0;
}
bool forwardByChunks(const Outputs&, const Launch&, int&) {
  return false;
}
size_t headChainsSize(const LinearProblem&) {
  return 0;
}
bool forwardByHeads(const Outputs&, const Launch&, int&) {
  return false;
}
}  // namespace forward_sm90

bool savesInitial(const LinearProblem&) {
  return false;
}
int launchForwardAndSave(const Outputs&, float*, const Launch&) {
  return cudaErrorNotSupported;
}
size_t keptStatesSize(const LinearProblem&) {
  return 0;
}
int launchForwardAndKeep(const Outputs&, float*, void*, const Launch&) {
  return cudaErrorNotSupported;
}
bool forwardFromZero(const LinearProblem&) {
  return false;
}
int forwardMaps(const LinearProblem&) {
  return 0;
}
int launchForwardMaps(const Outputs&, const Launch&) {
  return cudaErrorNotSupported;
}
int launchForwardAfterMaps(const Outputs&, const Launch&) {
  return cudaErrorNotSupported;
}
int launchForwardFromZero(const Outputs&, const Launch&) {
  return cudaErrorNotSupported;
}
int launchAddInitial(const Outputs&, const Launch&) {
  return cudaErrorNotSupported;
}
#endif

namespace {

bool ofRank(const SegmentStates& pass) {
  return pass.state != nullptr || pass.logDecay != nullptr;
}
/// Only the map of the rank needs the last segment's map.
int segmentsOf(const SegmentStates& pass) {
  return pass.segments.count - (ofRank(pass) || pass.allSegments ? 0 : 1);
}

template <class Pass>
bool leavesOutForgotten(const Pass& pass) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.heads.first == 0 && pass.heads.count == problem.heads && pass.segments.spans == nullptr;
  return pass.content == Maps::PerSegment && pass.allSegments && whole && problem.gate == Gate::Token &&
         allowed(problem, pass.heads) && problem.type != seqparFloat32 && forward_sm90::fits(problem);
}

/// Pass 1 without the fold.
int launchMaps(const SegmentStates& pass, const Launch& launch) {
  if (!allowed(pass.problem, pass.heads)) return cudaErrorInvalidValue;
  const int segments = segmentsOf(pass);
  if (segments == 0) return cudaSuccess;
  int error = cudaSuccess;
  const bool full = pass.problem.type == seqparFloat32;
  if (!full && forward_sm90::fits(pass.problem) && forward_sm90::segmentStates(pass, segments, launch, error))
    return error;
  if (pass.problem.inputGates.data != nullptr) return cudaErrorNotSupported;
  startsEarly(ordinaryRecord(pass.maps), launch);
  if (full) return runSegmentStatesFp32(pass, segments, launch);
  return dispatch(pass.problem, [&](auto t, auto dk, auto perChannel) {
    return runSegmentStates<decltype(t), dk(), perChannel()>(pass, segments, launch);
  });
}

}  // namespace

int ctasAtOnce(const LinearProblem& problem) {
  constexpr int kFp32Ctas = 8;  // per SM; those kernels are slow in any case
  int device = 0, sms = 0;
  if (whyNot(problem) != nullptr || cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  if (problem.type == seqparFloat32) return sms * kFp32Ctas;
  if (forward_sm90::fits(problem)) return forward_sm90::ctasAtOnce(problem);
  return sms * dispatch(problem, [](auto t, auto dk, auto perChannel) {
           return forwardOccupancy<decltype(t), dk(), perChannel()>();
         });
}

int forwardSharedBytes(const LinearProblem& problem) {
  if (problem.type == seqparFloat32) return forwardSharedFp32(problem);
  return dispatch(problem,
                  [](auto t, auto dk, auto perChannel) { return forwardShared<decltype(t), dk(), perChannel()>(); });
}

Maps fastestMaps(const LinearProblem& problem, const Segments& segments) {
  const bool few = segments.count <= maxPerSegment(problem);
  return few && problem.type != seqparFloat32 && forward_sm90::fits(problem) ? Maps::PerSegment : Maps::Prefix;
}

bool supportsLead(const LinearProblem& problem) {
  // With channel decays both passes are memory bound, so concurrent outputs would slow pass 1.
  return problem.gate != Gate::Channel && problem.dk <= kMostFusedDimension && problem.type != seqparFloat32 &&
         forward_sm90::fits(problem);
}

size_t outputsWorkspaceSize(const LinearProblem& problem) {
  if (problem.type == seqparFloat32 || !forward_sm90::fits(problem)) return 0;
  return std::max({forward_sm90::workspaceSize(problem), forward_sm90::chunkStatesSize(problem),
                   forward_sm90::headChainsSize(problem)});
}

bool outputsArePaired(const LinearProblem& problem) {
  const bool two = (problem.type == seqparBfloat16 && pairsHeads(problem)) || joinsShortHeads(problem);
  return problem.type != seqparFloat32 && two && forward_sm90::fits(problem);
}

bool fusesInputGate(const LinearProblem& problem) {
  // The backward's sums over blocks of more than 128 columns exclude the gate's gradient.
  return problem.gate != Gate::Channel && problem.dv <= kMostFusedDimension && problem.type == seqparBfloat16 &&
         forward_sm90::fits(problem);
}

int launchSegmentStates(const SegmentStates& pass, const Launch& launch) {
  const int error = launchMaps(pass, launch);
  const bool rank = ofRank(pass);
  if (error != cudaSuccess || segmentsOf(pass) == 0 || (pass.content != Maps::Prefix && !rank)) return error;
  return launchFold(
      {pass.problem, pass.segments, pass.heads, pass.maps, false, pass.content, pass.state, pass.logDecay, pass.base},
      launch);
}

int launchScanMaps(const SegmentStates& pass, int* scratch, const Launch& launch) {
  int error = cudaSuccess;
  const bool done =
      leavesOutForgotten(pass) && forward_sm90::segmentStates(pass, pass.segments.count, launch, error, scratch);
  return done ? error : launchSegmentStates(pass, launch);
}
int launchScanMaps(const SegmentStateGradients& pass, int* scratch, const Launch& launch) {
  int error = cudaSuccess;
  const bool done = leavesOutForgotten(pass) &&
                    forward_sm90::segmentStateGradients(pass, pass.segments.count, launch, error, scratch);
  return done ? error : launchSegmentStateGradients(pass, launch);
}

int launchForward(const Outputs& pass, const Launch& on) {
  int whole = cudaSuccess;
  if (allowed(pass.problem, pass.heads) && aligned(pass.problem, pass.out) &&
      (forward_sm90::forwardByChunks(pass, on, whole) || forward_sm90::forwardByHeads(pass, on, whole))) {
    return whole;
  }
  LaunchSequence alone;
  Launch launch = on;
  if (launch.sequence == nullptr) launch.sequence = &alone;
  Outputs others = pass;
  if (pass.content == Maps::PerSegment && !pass.storesMaps && forward_sm90::packs(pass)) {
    others.format = MapFormat::Registers;
  }
  SegmentStates states = {pass.problem, pass.segments, pass.heads, pass.maps};
  states.content = pass.content;
  states.format = others.format;
  const int64_t lead = pass.segments.begin;
  if (lead == 0) {
    const int error = launchSegmentStates(states, launch);
    return error != cudaSuccess ? error : launchOutputs(others, launch);
  }
  int error = launchMaps(states, launch);
  if (error != cudaSuccess) return error;
  Outputs first = pass;
  first.problem.tokens = lead;
  first.segments = {1, lead};
  first.finalState = pass.maps.lead;
  if (pass.segments.count > 1) first.tokens = Tokens::Lead;
  error = launchOutputs(first, launch);
  if (error == cudaSuccess && pass.content == Maps::Prefix) {
    error = launchFold({pass.problem, pass.segments, pass.heads, pass.maps}, launch);
  }
  if (error != cudaSuccess) return error;
  others.initial = pass.maps.lead;
  return launchOutputs(others, launch);
}

int launchOutputs(const Outputs& pass, const Launch& launch) {
  if (!allowed(pass.problem, pass.heads) || !aligned(pass.problem, pass.out)) return cudaErrorInvalidValue;
  int error = cudaSuccess;
  const bool full = pass.problem.type == seqparFloat32;
  if (!full && forward_sm90::fits(pass.problem) && forward_sm90::outputs(pass, launch, error)) return error;
  if (pass.problem.inputGates.data != nullptr) return cudaErrorNotSupported;
  if (pass.content == Maps::PerSegment)
    error = launchFold({pass.problem, pass.segments, pass.heads, pass.maps}, launch);
  if (error != cudaSuccess) return error;
  startsEarly(waitingRecord(pass), launch);
  if (full) return runOutputsFp32(pass, launch);
  error = dispatch(pass.problem, [&](auto t, auto dk, auto perChannel) {
    return runOutputs<decltype(t), dk(), perChannel()>(pass, launch);
  });
  if (error != cudaSuccess || pass.content == Maps::Prefix || !pass.storesMaps) return error;
  // The fold has combined the maps; Gradients needs them per segment.
  SegmentStates unfolded = {pass.problem, pass.segments, pass.heads, pass.maps};
  unfolded.content = Maps::PerSegment;
  return launchMaps(unfolded, launch);
}

}  // namespace seqpar::attn
