/*
 * seqpar/ring.h - tensors that rotate over the ranks while the ranks compute: rings, double rings, and single shifts.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply. Use of a ring (n ranks process all n shards, n - 1 transfers):
 *
 *     seqparRingCreate(&ring, &params, comm);
 *     for each layer:
 *       seqparRingReset(ring);
 *       fill the tensors that seqparRingCurrent() returns
 *       for (step = 0; step < n; ++step) {
 *         if (step + 1 < n) seqparRingPost(ring, stream);   start the transfer
 *         compute with the current tensors                   overlapped with the transfer
 *         if (step + 1 < n) seqparRingWait(ring, stream);    switch to the next tensors
 *       }
 *     seqparRingDestroy(ring);
 *
 * On host memory a transfer runs on the ring's thread; on a GPU on the ring's stream, by copy engines, kernels or NCCL.
 * Copy engines leave every SM to the computation. A ring uses them if it contains all ranks of a communicator with
 * mutual peer access, no rank passes `scratch`, and a step moves at least 2 MiB (256 KiB more for each further tensor).
 * Captured rounds, and rings with several ranks of one process on a GPU, use kernels. The environment variable
 * SEQPAR_RING_ENGINE overrides the choice: `kernels` on any rank disables copy engines; `copy` on all ranks enables
 * them for any size. seqparRingQuery() returns the engine and the reason. A ring with copy engines never writes into
 * the caller's `home`; its memory returns to the communicator for the next such ring. If ranks of one process share a
 * GPU, transfers run on the caller's stream, before work that is enqueued between post and wait.
 *
 * CUDA graphs. A round can be captured: seqparRingPost() and seqparRingWait() on a capturing stream (or on streams that
 * joined the capture), starting with the first transfer of a round, after seqparRingCreate() or seqparRingReset(),
 * which may be called before or during the capture. Any number of the round's transfers may be captured, each with its
 * seqparRingWait() in the same capture, and any number of rounds of any rings in sequence. Work captured between a post
 * and its wait overlaps the transfer, except collectives of the same communicator, which run after it.
 *
 * All ranks of the ring capture the same rounds. Each replay is a collective call, in the same order among the
 * communicator's other calls and replays on all ranks. The library does not order replays: the caller's streams and
 * events must order a replay after earlier work and before later work of the communicator. Every replay repeats the
 * captured calls with their buffers: it sends this rank's tensors from the buffers of the start of the round, and after
 * captured transfer k the current tensors are at the addresses that seqparRingCurrent() returned after wait k of the
 * capture. Without `keepHome` those buffers are overwritten, so the rank's own tensors must be written again before
 * each replay, or in the graph.
 *
 * During capture the calls change the ring's state as usual; replays do not change it. A captured round cannot continue
 * outside its capture, nor another round inside it: seqparRingPost() and seqparRingWait() return InvalidUsage.
 * seqparRingReset() starts a new round, also after a capture that ended before the wait. A ring may be destroyed while
 * graphs contain rounds of it, even during replays: the ring's memory stays allocated until the graphs and their
 * instances are destroyed (the caller's buffers are the caller's responsibility). No graph may be replayed after the
 * communicator is destroyed.
 */
#ifndef SEQPAR_RING_H_
#define SEQPAR_RING_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparRing* seqparRing_t; /**< one rank's membership in a ring, with its buffers */

#define SEQPAR_RING_MOST_TENSORS 64 /**< maximum number of tensors that move together */

/**
 * Description of a ring. Start from SEQPAR_RING_PARAMS_INITIALIZER. All ranks of the ring pass the same values, except
 * `home` and `scratch`. Arrays are read during the call only.
 */
typedef struct {
  size_t size;         /**< sizeof(seqparRingParams_t) */
  unsigned magic;      /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;    /**< SEQPAR_VERSION_CODE */
  int direction;       /**< seqparForward: tensors move to the next rank of the list; seqparReverse: to the previous
                            rank */
  const int* ranks;    /**< [nranks] ranks of the communicator in ring order, each once; NULL: all, in order */
  int nranks;          /**< length of `ranks`; ignored without it. A rank's place is its index in `ranks` */
  int inner;           /**< double ring: places per window, a divisor of nranks; 0: nranks, a single ring. See below */
  int unchanged;       /**< double ring: 1 (default): tensors are not modified in transit, so the next window's may be
                            sent ahead; 0: each holder may modify them before it posts (gradients) */
  int keepHome;        /**< 1: transfers never overwrite this rank's own tensors; 0 (default): buffers are reused,
                            unless ranks have tensors of different sizes: then it is 1 */
  int steps;           /**< transfers per round, 1 to nranks; 0: nranks - 1. After nranks transfers the own tensors have
                            returned */
  int tensors;         /**< number of tensors that move together, 1 to SEQPAR_RING_MOST_TENSORS */
  const size_t* bytes; /**< [tensors] bytes of each, the same on all ranks; with `uneven` [nranks][tensors], by place */
  int uneven;          /**< 1: ranks have tensors of different sizes */
  void* const* home;   /**< [tensors] the caller's buffers for its own tensors, each of this rank's `bytes`; NULL: the
                            ring's memory */
  void* const* scratch; /**< [seqparRingScratch()][tensors] the caller's receive buffers, each as large as the
                             largest such tensor of any rank; NULL: the ring's memory */
} seqparRingParams_t;

#define SEQPAR_RING_PARAMS_INITIALIZER                                                                                 \
  {                                                                                                                    \
    sizeof(seqparRingParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparForward, (const int*)0, 0, 0, 1, 0, 0, \
        0, (const size_t*)0, 0, (void* const*)0, (void* const*)0                                                       \
  }

/*
 * The order of a ring, forward; in reverse, exchange + and -. Place p = W * inner + x is index x of window W. After
 * step k = o * inner + i (0 <= i < inner), the place holds the tensors of place (W - o) * inner + (x - i), windows
 * modulo nranks / inner and indices modulo inner. A single ring is one window: after k steps, the tensors of p - k.
 *
 * A double ring (LoongTrain, arXiv 2406.18485, "Double-Ring-Attention") moves tensors between windows only once per
 * window. With `unchanged`, a window's first tensors are sent to the next window in parts, one part per step of the
 * inner ring, starting before it. Without, tensors move to the next window after a full rotation in this one. Both
 * variants hold the same tensors after the same step.
 */

/** Result of seqparRingQuery(). Start from SEQPAR_RING_INFO_INITIALIZER. */
typedef struct {
  size_t size;      /**< sizeof(seqparRingInfo_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int nranks;       /**< ranks of the ring */
  int place;        /**< this rank's place */
  int steps;        /**< transfers per round */
  int step;         /**< completed transfers of this round */
  int posted;       /**< 1: a transfer is posted and not yet waited for */
  int source;       /**< the rank that owned the current tensors at the start of the round */
  char engine[64];  /**< text: the engine */
  char reason[128]; /**< text: the reason */
} seqparRingInfo_t;

#define SEQPAR_RING_INFO_INITIALIZER \
  { sizeof(seqparRingInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, "", "" }

/**
 * Collective over the ring's ranks: creates a ring and starts its first round; seqparRingCurrent() returns this rank's
 * own tensors. Ranks outside the list do not call it. Rings of one communicator may share ranks if their calls are in
 * the same order on all shared ranks. Errors: InvalidArgument (NULL, wrong magic, invalid or repeated ranks, a list
 * without this rank, inner not a divisor, steps, tensors or their sizes out of range, overlapping caller buffers),
 * SystemError (no memory), UnhandledCudaError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingCreate(seqparRing_t* ring, const seqparRingParams_t* params, seqparComm_t comm);

/**
 * Stores the number of buffer sets that `params` require in addition to `home`, 0 to 4. Not collective. Errors: as
 * seqparRingCreate.
 */
SEQPAR_API seqparResult_t seqparRingScratch(const seqparRingParams_t* params, seqparComm_t comm, int* sets);

/**
 * Collective over the ring's ranks: waits for an active transfer, then frees the ring and its memory, except memory
 * that graphs still use. Call it before the communicator is destroyed. NULL has no effect. On a failed communicator it
 * does not wait for other ranks. Errors: InvalidArgument (no ring).
 */
SEQPAR_API seqparResult_t seqparRingDestroy(seqparRing_t ring);

/**
 * Collective over the ring's ranks: starts the next transfer of the round: the current tensors (after all earlier work
 * of `stream`) are sent to the next place, and the previous place's tensors are received into other buffers. Returns
 * when this is enqueued. `stream` is the stream that computes with the tensors; NULL: the calling thread (on a GPU: the
 * default stream), so the transfer may start immediately. Until seqparRingWait(), current tensors may be read but not
 * written. It counts as a collective call of the communicator: later ones start when the transfer is done. Errors:
 * InvalidArgument (no ring, no stream), InvalidUsage (the previous transfer was not waited for; the round is complete,
 * or was started outside the stream's capture, or inside one), RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingPost(seqparRing_t ring, void* stream);

/**
 * Waits until the posted transfer is done: later work of `stream` may use the next tensors, which become the current
 * ones. NULL: waits in the call (on a GPU: the default stream). Errors: InvalidArgument (no ring, no stream),
 * InvalidUsage (nothing was posted, or not in the capture of `stream`), RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingWait(seqparRing_t ring, void* stream);

/**
 * Starts a new round: the current tensors are this rank's own again, in the buffers of the start of the round, with
 * their present contents. Allowed at any step. Not collective. Errors: InvalidArgument (no ring), InvalidUsage (a
 * posted transfer was not waited for, outside captures).
 */
SEQPAR_API seqparResult_t seqparRingReset(seqparRing_t ring);

/**
 * seqparRingReset() with this rank's own tensors at other addresses for this round: `tensors` [tensors], each of this
 * rank's bytes, so that no copy into the ring's buffers is needed. They are never written; they must stay unchanged,
 * and seqparRingCurrent() returns them, until the first transfer is waited for (double ring with `unchanged`: until the
 * last transfer inside a window is). A graph reads them from these addresses at each replay. Each rank chooses per
 * round: others may call seqparRingReset(). Errors: as seqparRingReset(); InvalidArgument (NULL, memory of the wrong
 * kind).
 */
SEQPAR_API seqparResult_t seqparRingResetFrom(seqparRing_t ring, const void* const* tensors);

/**
 * Stores the address and the size of current tensor `tensor`; either pointer may be NULL. The address of an empty
 * tensor in the ring's memory is NULL. Not collective. Errors: InvalidArgument (no ring, tensor).
 */
SEQPAR_API seqparResult_t seqparRingCurrent(seqparRing_t ring, int tensor, void** pointer, size_t* bytes);

/** Fills `info`. Not collective. Errors: InvalidArgument (no ring, NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparRingQuery(seqparRing_t ring, seqparRingInfo_t* info);

/**
 * Arguments of seqparShift(); they may differ between ranks. Start from SEQPAR_SHIFT_PARAMS_INITIALIZER. Arrays are
 * read during the call only.
 */
typedef struct {
  size_t size;                    /**< sizeof(seqparShiftParams_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int sendPeer;                   /**< the rank that receives the tensors; SEQPAR_NO_PEER (default): nothing is sent */
  int sendTensors;                /**< number of sent tensors, 0 to SEQPAR_RING_MOST_TENSORS */
  const void* const* sendBuffers; /**< [sendTensors] */
  const size_t* sendBytes;        /**< [sendTensors] */
  int receivePeer;                /**< the rank that sends the tensors; SEQPAR_NO_PEER (default): nothing is received */
  int receiveTensors;             /**< number of received tensors, 0 to SEQPAR_RING_MOST_TENSORS */
  void* const* receiveBuffers;    /**< [receiveTensors] */
  const size_t* receiveBytes;     /**< [receiveTensors] */
} seqparShiftParams_t;

#define SEQPAR_SHIFT_PARAMS_INITIALIZER                                                                              \
  {                                                                                                                  \
    sizeof(seqparShiftParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, SEQPAR_NO_PEER, 0, (const void* const*)0, \
        (const size_t*)0, SEQPAR_NO_PEER, 0, (void* const*)0, (const size_t*)0                                       \
  }

/**
 * One shift of several tensors: sends to one rank and receives from another concurrently. The receiver must receive
 * equally many tensors of equal sizes. With peers (r + t) mod n and (r - t) mod n it is step t of a balanced schedule
 * with idle ranks that help others (DistFlashAttn, arXiv 2310.03294, section 3.1: rank r sends to r + t, with another t
 * in each step); ranks may send different tensors. On a stream without computation it overlaps the computation. Both
 * peers may be this rank (copy). Received tensors overlap no other buffer; sent tensors must stay unchanged, and
 * received ones unread, until the work is done on `stream`. Errors: InvalidArgument (NULL, wrong magic, a peer or a
 * count out of range, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparShift(const seqparShiftParams_t* params, seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_RING_H_ */
