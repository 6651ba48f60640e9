// Gradients of chunks with channel decays on sm_90a, for keys of up to 256 channels: those of a layer without decays,
// from the operands of channel_chunks_sm90.h. channel_states_sm90.h stores S' and E' of all chunks before. With n' in
// place of n for products of these operands:
//
//     A_ts = q'_t . k'_s            dv_s = E'^T k'_s + sum_t A_ts dO_t
//     dA_ts = dO_t . v_s            dq'_t = S' dO_t + sum_s dA_ts k'_s      dq = scale 2^L dq'
//                                   dk'_s = E' v_s + sum_t dA_ts q'_t       dk = 2^-L dk'
//     dlog(a)_t = sum_(s >= t) (q'_s dq'_s - k'_s dk'_s) + rowsum(S' * E') + sum_s k'_s (E' v_s)
//
// Terms that do not pass the gate cancel in the last line, because they use the same rounded operands. A, and products
// of q', k' and dA, use two terms of T of each.
//
// Work      a CTA of 640 threads, one per SM, takes items (sequence, head, chunk, block of 128 channels) in steps of
//           the grid, and parts of 64 columns of v one after the other. Both items of a chunk compute dA; each computes
//           dq, dk and gates' gradients of its block, and dv of every second part
// Roles     warpgroups 0, 1: dA, dv, and gates' gradients; 2: dq; 3: dk; 4: one thread loads
// Tiles     chunks of 64 tokens; q' and k' 64 x 256, v and dO 64 x 64, S' and E' 128 x 64
// Smem      ChannelGroupMemory: q' of a block (16 KiB), k' (32), A as two terms (16), two stages of v, dO, S', E', E'
//           of the other block (64 KiB each), dv and then dA (8; its second term replaces A), L of a block (16), sums
//           of the carry. The stage after the last part: remainders of q' and k', which dq and dk replace, and terms of
//           gates' gradients
// Barriers  mbarriers of stages: full, empty; shared, sharedEmpty: the same for q', k' and A.
//           Named: kOfScores (A is not read any more), kOfTotal (dA is stored), kOfKeys (q' is not multiplied any
//           more), kOfQueries (q' dq' is stored, k' is not multiplied any more), kOfGates (q' dq' - k' dk' is stored)
// Overlap   parts, also of the next item, are loaded two ahead, and its q', k' and A while dq, dk and gates' gradients
//           are written. The kernel may start before channel_states_sm90.h's has ended
#pragma once

#include "kernels/attn/linear/backward/channel_group_scores_sm90.h"
#include "kernels/attn/linear/backward/channel_group_states_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The kernel.
template <class T>
struct ChannelGroupKernel {
  using Memory = ChannelGroupMemory<T>;
  static constexpr int kThreads = 5 * warpgroup::kThreads;
  /// Per thread, by role.
  static constexpr int kScoresRegisters = 96, kStatesRegisters = 128, kLoadsRegisters = 32;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    if (ptx::thread() == 0) memory.init();
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (task.isLeft()) return;
    const int group = ptx::uniform(ptx::thread() / warpgroup::kThreads);
    if (group < 2) {
      warpgroup::setmaxnregDec<kScoresRegisters>();
      ChannelGroupScores<T>::run(task);
    } else if (group == 2) {
      warpgroup::setmaxnregInc<kStatesRegisters>();
      ChannelGroupStates<T>::queries(task);
    } else if (group == 3) {
      warpgroup::setmaxnregInc<kStatesRegisters>();
      ChannelGroupStates<T>::keys(task);
    } else {
      warpgroup::setmaxnregDec<kLoadsRegisters>();
      if (ptx::thread() % warpgroup::kThreads == 0) ChannelGroupLoads<T>::run(task, memory);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
