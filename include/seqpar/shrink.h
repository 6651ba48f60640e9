/*
 * shrink.h - going on without ranks that were lost.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * After a failure every call on the communicator returns an error on all ranks (docs/ERRORS.md). The ranks that are
 * alive call seqparCommShrink(): they agree on the living members and get a communicator of these, in the same
 * processes. It has its own connections, shared memory and GPU windows, so a rank that was stopped and wakes later
 * cannot reach them. On GPUs keep the lost communicator while such a rank may wake: its kernels may store into the
 * lost communicator's windows.
 *
 *     result = train_step(comm);
 *     if (result == seqparRemoteError && seqparCommShrink(comm, NULL, &next) == seqparSuccess) {
 *       seqparCommDestroy(comm);
 *       comm = next;
 *     }
 *
 * Plans, rings, meshes and captured graphs of the lost communicator return its error; create them again.
 */
#ifndef SEQPAR_SHRINK_H_
#define SEQPAR_SHRINK_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Parameters of seqparCommShrink(). Start from SEQPAR_SHRINK_PARAMS_INITIALIZER. Equal on all ranks. */
typedef struct {
  size_t size;      /**< sizeof(seqparShrinkParams_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int timeoutMs; /**< a rank without an answer for so many milliseconds is silent; 0 (default): the timeout of `comm`,
                      which may be 0: ranks that are only silent are awaited forever */
  int minRanks;  /**< fewer living ranks are a RemoteError; 0 (default): no minimum */
  const seqparConfig_t* config; /**< of the new communicator; NULL (default): that of `comm` */
} seqparShrinkParams_t;

#define SEQPAR_SHRINK_PARAMS_INITIALIZER \
  { sizeof(seqparShrinkParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, (const seqparConfig_t*)0 }

/**
 * Marks `comm` as lost on all ranks that can be reached, and keeps the handle: calls in progress and later collective
 * calls return seqparRemoteError with "rank R revoked the communicator". Returns without waiting; a communicator that
 * is already lost keeps its first error. May be called from any thread. Semantics of MPI_Comm_revoke (ULFM), except
 * that seqparCommShrink() is the only collective call that works afterwards. Errors: InvalidArgument (no communicator).
 */
SEQPAR_API seqparResult_t seqparCommRevoke(seqparComm_t comm);

/**
 * Collective over the living ranks of `comm`: revokes `comm` if it still works, lets them agree on the living members,
 * and creates *newcomm from these, in the order of their ranks. `params` NULL: the defaults.
 *
 * Members. A rank is left out if its process has ended, if it has destroyed `comm`, or if it is silent: it does not
 * answer, or does not call within the timeout. Silent ranks are left out only if more than half of the members of
 * `comm` agree, so two sides of a broken network cannot both continue; processes that have ended do not count, so one
 * of two ranks can continue alone. A rank that is alive is not left out because an earlier collective timed out: if all
 * ranks live, *newcomm has all of them. Any rank may be lost, also further ones during the call.
 *
 * Time. Ranks that died are noticed within milliseconds. Each silent rank costs one timeout, three if it has a lower
 * rank than all living ones, and the agreement fails after eight timeouts. seqparConfig_t::timeoutMs limits the
 * creation of *newcomm.
 *
 * `comm` stays lost. Free it with seqparCommDestroy(), which waits for no other rank, before or after *newcomm.
 *
 * Errors: InvalidArgument; InvalidUsage (a communicator of seqparCommInitNccl(), or one that was shrunk already);
 * SystemError; RemoteError: "no quorum" (the living ranks are half of the members or fewer, and another one is silent),
 * "excluded" (the other ranks have decided without this one, which can only leave), no decision in time, or fewer than
 * minRanks. After "no quorum" and after an error of one rank's system, all ranks may call again.
 */
SEQPAR_API seqparResult_t seqparCommShrink(seqparComm_t comm, const seqparShrinkParams_t* params,
                                           seqparComm_t* newcomm);

/**
 * Writes to ranks[size of comm] the rank that each rank of `comm` had in the communicator that was shrunk. Errors:
 * InvalidArgument (NULL, no communicator), InvalidUsage (`comm` is not from seqparCommShrink()).
 */
SEQPAR_API seqparResult_t seqparCommParentRanks(seqparComm_t comm, int* ranks);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SHRINK_H_ */
