// The forward's passes and the backward's first one on sm_90a: bf16 and fp16, dk from 80 to 256, any dv; shorter for
// two heads (pairs.h). In fp16 without pairs and input gates.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::forward_sm90 {

/// Whether these kernels support the current device and `problem`; does not check its pointers and strides.
bool fits(const LinearProblem& problem);

/// CTAs at once on the current device; 0: an error.
int ctasAtOnce(const LinearProblem& problem);

/// The bytes of Outputs::workspace.
size_t workspaceSize(const LinearProblem& problem);

/// Whether these kernels run both of its passes, and its maps can have MapFormat::Registers.
bool packs(const Outputs& pass);

/// Launches like those of kernels/attn/linear/instances.h, for problems that fits() accepts. Return false if the TMA
/// does not support these tensors, and launch nothing; otherwise `error` is a cudaError_t. `scratch`: of
/// launchScanMaps(); channel decays: a word that is 0 if no map is needed; NULL: all maps are needed.
bool segmentStates(const SegmentStates& pass, int segments, const Launch& launch, int& error, int* scratch = nullptr);
bool segmentStateGradients(const SegmentStateGradients& pass, int segments, const Launch& launch, int& error,
                           int* scratch = nullptr);
bool outputs(const Outputs& pass, const Launch& launch, int& error);

/// Whether a forward of `problem` is faster by the states before every 128 tokens, which all outputs then read
/// (chunks/chunk_outputs_sm90.h). bf16, token decays or none; not packed.
bool formsChunks(const LinearProblem& problem);

/// The bytes of Outputs::workspace for that; 0: not formsChunks().
size_t chunkStatesSize(const LinearProblem& problem);

/// Launches that forward, with `pass` as for launchForward(). Returns false if it is not possible, and launches
/// nothing.
bool forwardByChunks(const Outputs& pass, const Launch& launch, int& error);

/// Whether a forward of `problem` is faster with each head in one chain over all tokens (chunks/head_chain_sm90.h;
/// keys of more than 128 channels: chunks/wide_chain_sm90.h; channel decays: chunks/channel_chain_sm90.h). Not packed.
bool formsHeadChains(const LinearProblem& problem);

/// The bytes of Outputs::workspace for that.
size_t headChainsSize(const LinearProblem& problem);

/// Launches that forward, as forwardByChunks().
bool forwardByHeads(const Outputs& pass, const Launch& launch, int& error);

}  // namespace seqpar::attn::forward_sm90
