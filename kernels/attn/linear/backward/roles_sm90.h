// The two halves of a CTA of the gradients' kernels, two warpgroups each: producers load a chunk, apply decays and keep
// the state's gradient; consumers multiply and write gradients. Producers process the next chunk while consumers
// process the current one.
//
// Barriers from producers to consumers: `prepared`, and `added` (to the state's gradient). From consumers to producers:
// `stateRead` (the state may be replaced), `read` (its gradient may be replaced) and `done` (the chunk's stage may be
// replaced). Alternate chunks use different barriers, because an arriving thread may be a chunk ahead.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

using Half = Place<2>;  ///< a thread's position in its half
constexpr int kGradientThreads = 2 * Half::kThreads;

struct Roles {
  static constexpr int kProducers = 5, kConsumers = 6, kPrepared = 7, kRead = 9, kDone = 10, kStateRead = 12,
                       kAdded = 13;

  SEQPAR_WARP static bool produces() { return warp::uniform(warp::thread() / Half::kThreads) == 0; }

  SEQPAR_WARP static void syncProducers() { warp::syncNamed<kProducers, Half::kThreads>(); }
  SEQPAR_WARP static void syncConsumers() { warp::syncNamed<kConsumers, Half::kThreads>(); }
  /// Barrier of one consumer warpgroup.
  SEQPAR_WARP static void syncOwn(const Half& me) { warpgroup::sync(me.group + 2); }

  SEQPAR_WARP static void arrivePrepared(int chunk) { arrive<kPrepared>(chunk); }
  SEQPAR_WARP static void awaitPrepared(int chunk) { await<kPrepared>(chunk); }
  SEQPAR_WARP static void arriveAdded() { warp::arriveNamed<kAdded, kGradientThreads>(); }
  SEQPAR_WARP static void awaitAdded() { warp::syncNamed<kAdded, kGradientThreads>(); }
  SEQPAR_WARP static void arriveStateRead() { warp::arriveNamed<kStateRead, kGradientThreads>(); }
  SEQPAR_WARP static void awaitStateRead() { warp::syncNamed<kStateRead, kGradientThreads>(); }
  SEQPAR_WARP static void arriveRead() { warp::arriveNamed<kRead, kGradientThreads>(); }
  SEQPAR_WARP static void awaitRead() { warp::syncNamed<kRead, kGradientThreads>(); }
  SEQPAR_WARP static void arriveDone(int chunk) { arrive<kDone>(chunk); }
  SEQPAR_WARP static void awaitDone(int chunk) { await<kDone>(chunk); }

 private:
  template <int kFirst>
  SEQPAR_WARP static void arrive(int chunk) {
    if (chunk % 2 == 0) {
      warp::arriveNamed<kFirst, kGradientThreads>();
    } else {
      warp::arriveNamed<kFirst + 1, kGradientThreads>();
    }
  }
  template <int kFirst>
  SEQPAR_WARP static void await(int chunk) {
    if (chunk % 2 == 0) {
      warp::syncNamed<kFirst, kGradientThreads>();
    } else {
      warp::syncNamed<kFirst + 1, kGradientThreads>();
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
