// Gradients of chunks for groups of heads that share queries and keys, with token decays, on sm_90a: all terms that the
// heads of a group share are added in registers. chunk_states_sm90.h stores the states before all chunks, and the
// gradients of the states after them, before. With S and E of a head, its decays to tokens of the chunk a_t, from
// tokens to the chunk's end b_s, between tokens w_ts, and input gates g_s:
//
//     A_ts = scale q_t . k_s w_ts                    dv_s / g_s = b_s E^T k_s + sum_t A_ts dO_t
//     dA_ts = sum_heads dO_t . v_s g_s w_ts scale    dq_t = sum_heads S (scale a_t dO_t) + sum_s dA_ts k_s
//                                                    dk_s = sum_heads E (b_s g_s v_s) + sum_t dA_ts q_t
//     dlog(a)_t = sum_(s >= t) (q_s dq_s - k_s dk_s) + rowsum(state after the chunk * E)
//
// In the last line k_s dk_s of a head is v_s dv_s, the gradient of g_s times g_s; q_t dq_t is the sum of a row of A
// times dO v^T, and dO_t times the state's output; and the carry is the chunk's decay times rowsum(S * E), plus the
// states' terms of k_s dk_s. The row sums use the rounded A, so that they cancel as exactly as dv is.
//
// Work      a CTA of 640 threads, one per SM, takes items (sequence, group, segment, chunk, block of 128 channels) in
//           steps of the grid, and processes the group's heads one after the other. With two blocks, both items of a
//           chunk compute scores of all channels and dA; each computes dq and dk of its block, and A and dv of every
//           second head. Heads of 128 columns or more are parts of 64 columns there, which count as heads with equal
//           decays. Each item writes its own terms of the gates' gradients
// Roles     warpgroups 0, 1: A, dA and dv; 2: dq; 3: dk; 2 and 3 also half of the product of S and E each; 4: one
//           thread loads, one warp computes factors, another writes gates' gradients
// Tiles     chunks of 64 tokens; q and k 64 x 128, v and dO 64 x 64, S and E 128 x 64; with 80 columns of v, S and E
//           transposed, 80 x 128; keys of up to 64: 64 instead of 128; two blocks: q and k 64 x 256, and E of the other
//           block for dv
// Smem      GroupMemory: q, k, three stages of v, dO, S and E (48 KiB each; 80 columns: two of 72 KiB; two blocks: two
//           of 64 KiB), A and then the sum of dA, dv of two heads
// Barriers  mbarriers of stages: full (loads and factors to consumers), empty (the reverse); shared, sharedEmpty: the
//           same for q and k; partial, sharedPartial: loads of tiles, whose last rows the warp of factors zeroes.
//           multiplied: both warpgroups of scores have multiplied A, so the next head's may replace it.
//           summed, written of slots: sums to the warp of gates' gradients, and the reverse.
//           Named: kOfScores (A is stored), kOfTotal (the sum of dA is stored)
// Overlap   heads, also of the next item, are loaded as many ahead as there are stages. The TMA stores a head's dv
//           during the next one, after kOfScores, which is after the stores to shared memory and their fences. dq and
//           dk are stored from registers while the next item's q and k are loaded. The kernel may start before
//           chunk_states_sm90.h's has ended, which starts after all earlier ones
#pragma once

#include "kernels/attn/linear/backward/group_producers_sm90.h"
#include "kernels/attn/linear/backward/group_scores_sm90.h"
#include "kernels/attn/linear/backward/group_states_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The kernel.
template <class T, class Shape>
struct GroupKernel {
  using Memory = GroupMemory<T, Shape>;
  static constexpr int kThreads = 5 * warpgroup::kThreads;
  /// Per thread, by role.
  static constexpr int kScoresRegisters = 96, kQueriesRegisters = 136, kKeysRegisters = 120, kProducersRegisters = 32;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_DEVICE static void run(const GroupTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    if (ptx::thread() == 0) memory.init();
    ptx::syncthreads();
    const int group = ptx::uniform(ptx::thread() / warpgroup::kThreads);
    if (group < 2) {
      warpgroup::setmaxnregDec<kScoresRegisters>();
      GroupScores<T, Shape>::run(task);
    } else if (group == 2) {
      warpgroup::setmaxnregInc<kQueriesRegisters>();
      GroupStates<T, Shape>::queries(task);
    } else if (group == 3) {
      warpgroup::setmaxnregInc<kKeysRegisters>();
      GroupStates<T, Shape>::keys(task);
    } else {
      warpgroup::setmaxnregDec<kProducersRegisters>();
      const int warp = ptx::uniform(ptx::thread() / 32 % 4);
      if (warp == 1) {
        GroupProducers<T, Shape>::computeFactors(task, memory);
      } else if (warp == 2) {
        GroupProducers<T, Shape>::writeAllGates(task, memory);
      } else if (warp == 0 && ptx::thread() % 32 == 0) {
        GroupProducers<T, Shape>::load(task, memory);
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
