/*
 * seqpar/plan.h - measured link constants, and predicted times of data movements.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply. No function here is collective; all ranks get equal results.
 */
#ifndef SEQPAR_PLAN_H_
#define SEQPAR_PLAN_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Classes of rank pairs. */
typedef enum {
  seqparLinkProcess = 0, /**< threads of one process */
  seqparLinkNode = 1,    /**< processes of one node */
  seqparLinkNetwork = 2  /**< ranks of different nodes */
} seqparLinkClass_t;

#define SEQPAR_LINK_CLASSES 3 /**< number of classes */

/** Result of seqparLinkQuery(). Start from SEQPAR_LINK_INFO_INITIALIZER. */
typedef struct {
  size_t size;       /**< sizeof(seqparLinkInfo_t) */
  unsigned magic;    /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;  /**< SEQPAR_VERSION_CODE */
  int pairs;         /**< pairs of ranks of this class; 0: the constants below are those of the nearest class */
  int remembered;    /**< 1: read from the SEQPAR_TUNING_CACHE file; 0: measured at creation of the communicator */
  double alphaUs;    /**< latency of an empty message, one way, us */
  double bandwidth;  /**< bytes per second of a hop in a stream, with all ranks of the class active; 0: not measured */
  double overheadUs; /**< cost of one more message in a stream, us */
} seqparLinkInfo_t;

#define SEQPAR_LINK_INFO_INITIALIZER \
  { sizeof(seqparLinkInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0., 0., 0. }

/** Fills `info` for a seqparLinkClass_t. Errors: InvalidArgument (unknown class, NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparLinkQuery(seqparComm_t comm, int linkClass, seqparLinkInfo_t* info);

/** What the cost models assume about all ranks. Start from SEQPAR_PLAN_INFO_INITIALIZER. */
typedef struct {
  size_t size;      /**< sizeof(seqparPlanInfo_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int ranksPerNode; /**< ranks of the fullest node */
  int gpuArch;      /**< smallest compute capability of the ranks' GPUs, such as 90 for 9.0; 0: host memory */
  int gpuSms;       /**< smallest number of SMs of the ranks' GPUs; 0: host memory */
} seqparPlanInfo_t;

#define SEQPAR_PLAN_INFO_INITIALIZER \
  { sizeof(seqparPlanInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0 }

/** Fills `info`. Errors: InvalidArgument (NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparPlanQuery(seqparComm_t comm, seqparPlanInfo_t* info);

/** Data movements over a group of n ranks, with the meaning of `bytes`: */
typedef enum {
  seqparMoveShift = 0,         /**< sent by every rank to the next of the group: a step of a ring */
  seqparMoveRing = 1,          /**< the same, n - 1 times in sequence */
  seqparMoveAllGather = 2,     /**< contributed by every rank */
  seqparMoveReduceScatter = 3, /**< received by every rank: a sum of n contributions */
  seqparMoveAllToAll = 4       /**< held by every rank: 1 / n is sent to each */
} seqparMove_t;

#define SEQPAR_MOVES 5 /**< number of movements */

/**
 * Stores the predicted time of a seqparMove_t, us, from alpha-beta formulas with the constants of the slowest link
 * class in the group. Contention with other traffic is not modeled.
 *
 *   ranks  [nranks] the group, in ring order; NULL: all ranks, and nranks is not read
 *
 * Errors: InvalidArgument (unknown movement, NULL, invalid or repeated ranks).
 */
SEQPAR_API seqparResult_t seqparMoveEstimate(int move, size_t bytes, const int* ranks, int nranks, seqparComm_t comm,
                                             double* us);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_PLAN_H_ */
