/*
 * plan.h - what the planner knows: measured constants of the links, and what movements of data should take by them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold. Nothing here is collective, and all ranks get the same answers.
 */
#ifndef SEQPAR_PLAN_H_
#define SEQPAR_PLAN_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Classes of pairs of ranks. */
typedef enum {
  seqparLinkProcess = 0, /**< threads of one process */
  seqparLinkNode = 1,    /**< processes of one node */
  seqparLinkNetwork = 2  /**< ranks of different nodes */
} seqparLinkClass_t;

#define SEQPAR_LINK_CLASSES 3 /**< number of classes */

/** What seqparLinkQuery() tells. Start from SEQPAR_LINK_INFO_INITIALIZER. */
typedef struct {
  size_t size;       /**< sizeof(seqparLinkInfo_t) */
  unsigned magic;    /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;  /**< SEQPAR_VERSION_CODE */
  int pairs;         /**< pairs of ranks of this class; 0: the constants below are those of the nearest class */
  int remembered;    /**< 1: from the file that SEQPAR_TUNING_CACHE names; 0: measured when the communicator was made */
  double alphaUs;    /**< latency of an empty message, one way, us */
  double bandwidth;  /**< bytes a second of a hop in a stream, with all ranks of the class at work; 0: not measured */
  double overheadUs; /**< cost of one more message in a stream, us */
} seqparLinkInfo_t;

#define SEQPAR_LINK_INFO_INITIALIZER \
  { sizeof(seqparLinkInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0., 0., 0. }

/** Fills `info` for a seqparLinkClass_t. Errors: InvalidArgument (no such class, NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparLinkQuery(seqparComm_t comm, int linkClass, seqparLinkInfo_t* info);

/** Movements of data over a group of n ranks; `bytes` means: */
typedef enum {
  seqparMoveShift = 0,         /**< what every rank sends to the next of the group: a step of a ring */
  seqparMoveRing = 1,          /**< the same, n - 1 times, one after the other */
  seqparMoveAllGather = 2,     /**< what every rank contributes */
  seqparMoveReduceScatter = 3, /**< the result that every rank gets, a sum of n contributions */
  seqparMoveAllToAll = 4       /**< what every rank has, of which 1 / n goes to each */
} seqparMove_t;

#define SEQPAR_MOVES 5 /**< number of movements */

/**
 * Stores the model's time of a seqparMove_t, us: alpha-beta forms with the measured constants of the slowest class of
 * links in the group. A model: no contention with other traffic is foreseen.
 *
 *   ranks  [nranks] the group, in ring order; NULL: all ranks, and nranks is not read
 *
 * Errors: InvalidArgument (no such movement, NULL, ranks that are none or twice in the list).
 */
SEQPAR_API seqparResult_t seqparMoveEstimate(int move, size_t bytes, const int* ranks, int nranks, seqparComm_t comm,
                                             double* us);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_PLAN_H_ */
