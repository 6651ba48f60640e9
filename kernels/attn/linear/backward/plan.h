// Layout of a problem's backward pass: blocks of the state, terms to add, scratch. Compiles everywhere.
#pragma once

#include "kernels/attn/linear/backward/task.h"

namespace seqpar::attn::backward {

/// The most CTAs with scratch; launches never exceed it.
constexpr int kMostCtas = 320;

/// 64 or 128: rows and columns of the kernels' blocks.
int dimensionOf(const LinearProblem& problem);
/// Block size of the largest kernels that may run. The sm_90 kernels only support kBlock; short heads use a part of it.
/// With channel decays, short heads are left to the other kernels, or are two per CTA of the sm_90 gradients' kernels.
int mostDimensionOf(const LinearProblem& problem);
/// Whether these kernels process two short heads with channel decays at once.
bool hasTwoHeads(const LinearProblem& problem);

/// Offsets in gradientsWorkspaceSize() bytes. Negative: not needed.
struct Workspace {
  int64_t states = -1;                            ///< states of the chunks of each CTA's segment; groups: of all
  int64_t stateGradients = -1;                    ///< groups: of all chunks
  int64_t strong = -1;                            ///< a word per item, for the sm_90 kernels
  int64_t decays = -1;                            ///< sm_90: channel decays of each CTA's chunks
  int64_t dq = -1, dk = -1, dv = -1, gates = -1;  ///< terms: fp32, or fp16 and scales there; of pairs: fp16
  int64_t dqScales = -1, dkScales = -1;
  int64_t inputGates = -1;  ///< terms, fp32
  int64_t anyStrong = -1;   ///< formsChannelGroups(): ChannelTask::strong; the following replace all other memory
  int64_t records = -1, chunkStates = -1, chunkGradients = -1;
  int64_t size = 0;
};
/// Blocks of the gates' gradients. The kernels that process a segment's blocks of keys in one CTA add them.
int blocksOfGates(const Task& task);

/// `joins`: gradientsJoinHeads(). `kept`: of launchGradientsOfKept().
Workspace workspaceOf(const LinearProblem& problem, const Segments& segments, bool joins = false, bool kept = false);

}  // namespace seqpar::attn::backward
