/*
 * ring.h - tensors that travel from rank to rank while the ranks compute: rings, double rings, and single shifts.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold. A ring is used like this (n ranks see all n shards, n - 1 transfers):
 *
 *     seqparRingCreate(&ring, &params, comm);
 *     for each layer:
 *       seqparRingReset(ring);
 *       fill the tensors that seqparRingCurrent() gives
 *       for (step = 0; step < n; ++step) {
 *         if (step + 1 < n) seqparRingPost(ring, stream);   the transfer begins ...
 *         compute with the current tensors                   ... and runs beside this
 *         if (step + 1 < n) seqparRingWait(ring, stream);    the next tensors are the current ones
 *       }
 *     seqparRingDestroy(ring);
 *
 * On host memory a transfer runs on a thread of the ring's own; on a GPU on a stream of the ring's own, by copy
 * engines, kernels or NCCL. Copy engines leave every SM to the computation. They move a ring if it goes
 * over all ranks of a communicator that all reach each other's memory, nobody gives `scratch`, and a step has at least
 * 2 MiB (256 KiB more for each further tensor); what is captured into a graph still goes by kernels, and so do rings
 * with several ranks of one process on a GPU. The environment variable SEQPAR_RING_ENGINE decides otherwise: `kernels`
 * on any rank: never; `copy` on all: whatever the size. seqparRingQuery() tells what moves a ring, and why. A ring of
 * copy engines never writes into the caller's `home`, and its own memory is the communicator's afterwards, for the next
 * such ring. Where ranks of one process share a GPU, transfers run on the caller's stream: what is enqueued between
 * post and wait runs after them.
 *
 * CUDA graphs. A round may be captured: seqparRingPost() and seqparRingWait() on a stream that is being captured (or on
 * streams that have joined the capture), beginning with the first transfer of a round, so after seqparRingCreate() or
 * seqparRingReset(), which may stand before the capture or inside it. Any number of the round's transfers may be
 * captured, each with its seqparRingWait() in the same capture, and any number of rounds of any rings, one after the
 * other; what is captured between a post and its wait runs beside the transfer, except for collectives of the same
 * communicator, which run after it.
 *
 * All ranks of the ring capture the same rounds, and each replay is a collective call, in the same order among the
 * communicator's other calls and replays on all ranks. The library does not order a replay: it runs after everything of
 * the communicator that was enqueued before it and before everything that is enqueued later only if the caller's
 * streams and events say so. Every replay does what the captured calls did, with the buffers that they had: it sends
 * this rank's tensors as it finds them in the buffers of the beginning, and after captured transfer k the current
 * tensors lie where seqparRingCurrent() said after wait k of the capture. Without `keepHome` those buffers have been
 * used again, so own tensors are written anew before each replay, or in the graph.
 *
 * During the capture the calls change the ring's state as always; replays do not change it. A captured round does not
 * go on outside of its capture, nor another one inside: seqparRingPost() and seqparRingWait() say InvalidUsage, and
 * seqparRingReset() begins a new one, also where a capture has ended, in vain, before the wait. A ring may be destroyed
 * while graphs have rounds of it, and replays of these may be under way: the ring's own memory stays until the graphs
 * and what was instantiated of them are destroyed (buffers of the caller are the caller's business). No graph is
 * replayed after the communicator's end.
 */
#ifndef SEQPAR_RING_H_
#define SEQPAR_RING_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparRing* seqparRing_t; /**< one rank's place in a ring, with its buffers */

#define SEQPAR_RING_MOST_TENSORS 64 /**< the most tensors that travel together */

/**
 * What a ring is. Start from SEQPAR_RING_PARAMS_INITIALIZER. All ranks of the ring give the same values, except for
 * `home` and `scratch`, which are each rank's own. Arrays are read during the call only.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparRingParams_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int direction;    /**< seqparForward: tensors travel to the next rank of the list; seqparReverse: to the one before */
  const int* ranks; /**< [nranks] ranks of the communicator in ring order, each once; NULL: all, in order */
  int nranks;       /**< length of `ranks`; ignored without it. The place of a rank is its index here */
  int inner;        /**< double ring: places of a window, a divisor of nranks; 0: nranks, a plain ring. See below */
  int unchanged;    /**< double ring: 1 (default): tensors are not written on their way, so that those of the next
                         window may travel ahead; 0: each holder may write them before it posts (gradients) */
  int keepHome;     /**< 1: transfers never overwrite this rank's own tensors; 0 (default): the buffers are used again,
                         unless ranks have tensors of different sizes: then it is 1 */
  int steps;        /**< transfers of a round, 1 to nranks; 0: nranks - 1. After nranks, own tensors are home again */
  int tensors;      /**< number of tensors that travel together, 1 to SEQPAR_RING_MOST_TENSORS */
  const size_t*
      bytes;         /**< [tensors] bytes of each, the same for all ranks; with `uneven` [nranks][tensors], by place */
  int uneven;        /**< 1: ranks have tensors of different sizes */
  void* const* home; /**< [tensors] buffers of the caller for its own tensors, each as large as this rank's `bytes`;
                          NULL: the ring's own memory */
  void* const* scratch; /**< [seqparRingScratch()][tensors] buffers of the caller for what arrives, each as large as the
                             largest such tensor of any rank; NULL: the ring's own memory */
} seqparRingParams_t;

#define SEQPAR_RING_PARAMS_INITIALIZER                                                                                 \
  {                                                                                                                    \
    sizeof(seqparRingParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparForward, (const int*)0, 0, 0, 1, 0, 0, \
        0, (const size_t*)0, 0, (void* const*)0, (void* const*)0                                                       \
  }

/*
 * The order of a ring, forward; in reverse, + and - change places. Place p = W * inner + x is number x of window W.
 * After step k = o * inner + i (0 <= i < inner), the place holds the tensors of place (W - o) * inner + (x - i),
 * windows counted modulo nranks / inner and numbers modulo inner. A plain ring is one window: after k steps, those of p
 * - k.
 *
 * A double ring (LoongTrain, arXiv 2406.18485, "Double-Ring-Attention") moves tensors between windows only once for
 * each window. With `unchanged`, a window's first tensors begin to travel to the next window before the inner ring
 * begins, and in each step a part of them does. Without, tensors take the step to the next window when they have been
 * all round this one. Both kinds hold the same tensors after the same step.
 */

/** What seqparRingQuery() tells. Start from SEQPAR_RING_INFO_INITIALIZER. */
typedef struct {
  size_t size;      /**< sizeof(seqparRingInfo_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int nranks;       /**< ranks of the ring */
  int place;        /**< this rank's place */
  int steps;        /**< transfers of a round */
  int step;         /**< transfers waited for in this round */
  int posted;       /**< 1: a transfer was posted and not waited for yet */
  int source;       /**< the rank whose tensors the current ones were at the beginning of the round */
  char engine[64];  /**< in words: what moves the data */
  char reason[128]; /**< in words: why that does */
} seqparRingInfo_t;

#define SEQPAR_RING_INFO_INITIALIZER \
  { sizeof(seqparRingInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, "", "" }

/**
 * Collective over the ring's ranks: makes a ring. Its round has begun; the tensors of seqparRingCurrent() are this
 * rank's own. Ranks that are in no list do not call it; rings of one communicator may share ranks, as far as their
 * calls come in the same order on all ranks that they share. Errors: InvalidArgument (NULL, wrong magic, ranks that are
 * none, twice in the list, or without this one, inner no divisor, steps, tensors or their sizes out of range, buffers
 * of the caller that overlap), SystemError (no memory), UnhandledCudaError, and RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingCreate(seqparRing_t* ring, const seqparRingParams_t* params, seqparComm_t comm);

/** Stores the number of sets of buffers that `params` need beside `home`, 0 to 4. Not collective. Errors: as
 * seqparRingCreate. */
SEQPAR_API seqparResult_t seqparRingScratch(const seqparRingParams_t* params, seqparComm_t comm, int* sets);

/**
 * Collective over the ring's ranks: waits for a transfer that is under way, then frees the ring and its own memory,
 * except for what graphs still use. Before the communicator is destroyed. NULL is allowed. On a communicator that has
 * failed it waits for nobody. Errors: InvalidArgument (no ring).
 */
SEQPAR_API seqparResult_t seqparRingDestroy(seqparRing_t ring);

/**
 * Collective over the ring's ranks: begins the next transfer of the round: the current tensors (as they are when all
 * earlier work of `stream` is done) go to the next place while those of the place before come into other buffers.
 * Returns when that is enqueued. `stream` is the stream on which the tensors are computed; NULL: the calling thread (on
 * a GPU: the default stream), so that the transfer may begin at once. Until seqparRingWait(), current tensors may be
 * read, not written. It counts as a collective call of the communicator: later ones begin when the transfer is done.
 * Errors: InvalidArgument (no ring, no stream), InvalidUsage (the transfer before was not waited for; the round has no
 * more, or was begun outside of the stream's capture, or in one), RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingPost(seqparRing_t ring, void* stream);

/**
 * Waits until the posted transfer is done: later work of `stream` may use the next tensors, which are the current ones
 * from now on. NULL: waits in the call (on a GPU: the default stream). Errors: InvalidArgument (no ring, no stream),
 * InvalidUsage (nothing was posted, or not in the capture of `stream`), RemoteError.
 */
SEQPAR_API seqparResult_t seqparRingWait(seqparRing_t ring, void* stream);

/**
 * Begins a new round: the current tensors are this rank's own again, in the buffers of the beginning, whatever they
 * hold now. Allowed at any step. Not collective. Errors: InvalidArgument (no ring), InvalidUsage (a posted transfer was
 * not waited for, outside of captures).
 */
SEQPAR_API seqparResult_t seqparRingReset(seqparRing_t ring);

/**
 * The same, with this rank's own tensors elsewhere in this round: `tensors` [tensors], each of this rank's bytes, so
 * that they need not be copied into the ring's buffers. They are never written; they must stay unchanged, and
 * seqparRingCurrent() gives them, until the first transfer is waited for; in a double ring with `unchanged`, until the
 * last transfer between the ranks of a window is. A graph reads them from there at each replay. A rank's own choice in
 * each round: others may call seqparRingReset(). Errors: as seqparRingReset(); InvalidArgument (NULL, memory of the
 * wrong kind).
 */
SEQPAR_API seqparResult_t seqparRingResetFrom(seqparRing_t ring, const void* const* tensors);

/**
 * Stores the address and the length of current tensor `tensor`; either may be NULL for what is not wanted. The address
 * of an empty tensor in the ring's own memory is NULL. Not collective. Errors: InvalidArgument (no ring, tensor).
 */
SEQPAR_API seqparResult_t seqparRingCurrent(seqparRing_t ring, int tensor, void** pointer, size_t* bytes);

/** Fills `info`. Not collective. Errors: InvalidArgument (no ring, NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparRingQuery(seqparRing_t ring, seqparRingInfo_t* info);

/**
 * What a seqparShift() moves. Start from SEQPAR_SHIFT_PARAMS_INITIALIZER. Each rank's own. Arrays are read during the
 * call only.
 */
typedef struct {
  size_t size;                    /**< sizeof(seqparShiftParams_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int sendPeer;                   /**< the rank that gets the tensors; SEQPAR_NO_PEER (default): nothing is sent */
  int sendTensors;                /**< how many are sent, 0 to SEQPAR_RING_MOST_TENSORS */
  const void* const* sendBuffers; /**< [sendTensors] */
  const size_t* sendBytes;        /**< [sendTensors] */
  int receivePeer;                /**< the rank they come from; SEQPAR_NO_PEER (default): nothing is received */
  int receiveTensors;             /**< how many are received, 0 to SEQPAR_RING_MOST_TENSORS */
  void* const* receiveBuffers;    /**< [receiveTensors] */
  const size_t* receiveBytes;     /**< [receiveTensors] */
} seqparShiftParams_t;

#define SEQPAR_SHIFT_PARAMS_INITIALIZER                                                                              \
  {                                                                                                                  \
    sizeof(seqparShiftParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, SEQPAR_NO_PEER, 0, (const void* const*)0, \
        (const size_t*)0, SEQPAR_NO_PEER, 0, (void* const*)0, (const size_t*)0                                       \
  }

/**
 * One shift of several tensors: sends to one rank while receiving from another. The tensors that are sent are met by a
 * receive of as many tensors of the same lengths. With peers (r + t) mod n and (r - t) mod n it is step t of a balanced
 * schedule in which ranks help each other (DistFlashAttn, arXiv 2310.03294, section 3.1: rank r sends to r + t, another
 * t each step); which tensors go may differ from rank to rank. On a stream that computes nothing it runs beside the
 * computation. Sending to oneself is allowed if both peers are oneself. Received tensors overlap nothing; those that
 * are sent must stay unchanged, and those received unread, until the work is done on `stream`. Errors: InvalidArgument
 * (NULL, wrong magic, a peer or a number out of range, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparShift(const seqparShiftParams_t* params, seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_RING_H_ */
