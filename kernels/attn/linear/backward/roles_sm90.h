// The two halves of a CTA of the gradients' kernels, two warpgroups each: producers load a chunk, apply decays and keep
// the state's gradient; consumers multiply and write gradients. Producers process the next chunk while consumers
// process the current one.
//
// Barriers from producers to consumers: `prepared`, and `added` (to the state's gradient). From consumers to producers:
// `stateRead` (the state may be replaced), `read` (its gradient may be replaced) and `done` (the chunk's stage may be
// replaced). In the sweep, consumers add gates of channels between `loaded` and `summed`. Alternate chunks use
// different barriers, because an arriving thread may be a chunk ahead.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

using Half = Place<2>;  ///< a thread's position in its half
constexpr int kGradientThreads = 2 * Half::kThreads;

struct Roles {
  /// Named barriers; __syncthreads() has 0.
  enum Barrier {
    kWarpgroups = 1,  ///< to 4: of a warpgroup, warpgroup::sync()
    kProducers = 5,   ///< of the producers
    kConsumers = 6,   ///< of the consumers
    kPrepared = 7,    ///< producers to consumers: an even chunk is staged; 8: an odd one
    kRead = 9,        ///< consumers to producers: the image of E may be replaced
    kDone = 10,       ///< consumers to producers: the stage of an even chunk may be replaced; 11: of an odd one
    kStateRead = 12,  ///< consumers to producers: the image of S may be replaced
    kAdded = 13,      ///< producers to consumers: a chunk is added to E
    kLoaded = 14,     ///< producers to consumers, in the sweep: a chunk's gates are loaded
    kSummed = 15,     ///< consumers to producers, in the sweep: a chunk's gates are added
  };
  static_assert(kWarpgroups + 4 <= kProducers && kPrepared + 2 <= kRead && kDone + 2 <= kStateRead &&
                kSummed < ptx::kNamedBarriers);

  SEQPAR_DEVICE static bool produces() { return ptx::uniform(ptx::thread() / Half::kThreads) == 0; }

  SEQPAR_DEVICE static void syncProducers() { ptx::barrierSync<kProducers, Half::kThreads>(); }
  SEQPAR_DEVICE static void syncConsumers() { ptx::barrierSync<kConsumers, Half::kThreads>(); }
  /// Barrier of one consumer warpgroup.
  SEQPAR_DEVICE static void syncOwn(const Half& me) { warpgroup::sync(me.group + 2); }

  SEQPAR_DEVICE static void arrivePrepared(int chunk) { arrive<kPrepared>(chunk); }
  SEQPAR_DEVICE static void awaitPrepared(int chunk) { await<kPrepared>(chunk); }
  SEQPAR_DEVICE static void arriveAdded() { ptx::barrierArrive<kAdded, kGradientThreads>(); }
  SEQPAR_DEVICE static void awaitAdded() { ptx::barrierSync<kAdded, kGradientThreads>(); }
  SEQPAR_DEVICE static void arriveLoaded() { ptx::barrierArrive<kLoaded, kGradientThreads>(); }
  SEQPAR_DEVICE static void awaitLoaded() { ptx::barrierSync<kLoaded, kGradientThreads>(); }
  SEQPAR_DEVICE static void arriveSummed() { ptx::barrierArrive<kSummed, kGradientThreads>(); }
  SEQPAR_DEVICE static void awaitSummed() { ptx::barrierSync<kSummed, kGradientThreads>(); }
  SEQPAR_DEVICE static void arriveStateRead() { ptx::barrierArrive<kStateRead, kGradientThreads>(); }
  SEQPAR_DEVICE static void awaitStateRead() { ptx::barrierSync<kStateRead, kGradientThreads>(); }
  SEQPAR_DEVICE static void arriveRead() { ptx::barrierArrive<kRead, kGradientThreads>(); }
  SEQPAR_DEVICE static void awaitRead() { ptx::barrierSync<kRead, kGradientThreads>(); }
  SEQPAR_DEVICE static void arriveDone(int chunk) { arrive<kDone>(chunk); }
  SEQPAR_DEVICE static void awaitDone(int chunk) { await<kDone>(chunk); }

 private:
  template <int kFirst>
  SEQPAR_DEVICE static void arrive(int chunk) {
    if (chunk % 2 == 0) {
      ptx::barrierArrive<kFirst, kGradientThreads>();
    } else {
      ptx::barrierArrive<kFirst + 1, kGradientThreads>();
    }
  }
  template <int kFirst>
  SEQPAR_DEVICE static void await(int chunk) {
    if (chunk % 2 == 0) {
      ptx::barrierSync<kFirst, kGradientThreads>();
    } else {
      ptx::barrierSync<kFirst + 1, kGradientThreads>();
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
