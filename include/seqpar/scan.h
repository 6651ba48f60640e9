/*
 * seqpar/scan.h - All-Scan: the states of linear attention, passed through all ranks. seqpar.h includes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here.
 */
#ifndef SEQPAR_SCAN_H_
#define SEQPAR_SCAN_H_

#include "seqpar/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * All-Scan
 *
 * Position p of a scan is rank p in the forward direction and rank nranks-1-p in the reverse direction. Position p has
 * a state S_p and a transition A_p. With x_0 = initial (or 0):
 *
 *     prefix_p = x_p                       the state before position p   (exclusive scan)
 *     total_p  = x_(p+1) = A_p x_p + S_p   the state after position p    (inclusive scan)
 *
 * Source: ZeCO, "Zero Communication Overhead Sequence Parallelism for Linear Attention" (arXiv 2507.01004), All-Scan,
 * which is the DIAG operator with the CHAIN algorithm here; LASP-1 (arXiv 2404.02882) and LASP-2 (arXiv 2502.07563) as
 * baselines.
 * -------------------------------------------------------------------------------------------------------------------
 */

/** What A_p is. The shape is that of the `transition` argument, fp32, row-major. */
typedef enum {
  seqparScanSum = 0,    /**< A = 1; `transition` is NULL. Plain linear attention */
  seqparScanScalar = 1, /**< one number a head: [heads]. RetNet, Lightning Attention, Mamba-2 */
  seqparScanDiag = 2,   /**< one number for each row of the state: [heads][dk]. GLA */
  seqparScanMatrix = 3  /**< a matrix a head: [heads][dk][dk], x -> A x; in reverse x -> A^T x. DeltaNet, KDA, RWKV-7 */
} seqparScanOp_t;

typedef enum {
  seqparForward = 0, /**< from rank 0 to the last rank */
  seqparReverse = 1  /**< from the last rank to rank 0; gradients of states */
} seqparDirection_t; /**< which way states go */

/** How the numbers of a SCALAR or DIAG transition are given. Logarithms are exponentiated once, in fp32. */
typedef enum {
  seqparDecayLinear = 0, /**< the factor itself */
  seqparDecayLog = 1,    /**< its natural logarithm; -inf is factor 0 */
  seqparDecayLog2 = 2    /**< its logarithm to base 2; -inf is factor 0 */
} seqparDecayForm_t;

/** How the scan is done. */
typedef enum {
  seqparScanAuto = 0,    /**< the fastest by the measured cost model; the same on all ranks. SEQPAR_ALGO overrides it */
  seqparScanChain = 1,   /**< ZeCO: a pipeline through the ranks in K blocks; each block takes one hop a rank */
  seqparScanOneshot = 2, /**< every rank reads the states of all positions before its own and combines them */
  seqparScanTransposed = 3, /**< all-to-all, each rank scans its shard of all positions, all-to-all back: 2 hops */
  /** Recursive doubling, exclusive: ceil(log2(P-1) + log2(4/3)) rounds (Traeff, arXiv 2507.04785). */
  seqparScanDoubling = 4,
  seqparScanHier = 5,  /**< TRANSPOSED inside a node, a chain of shards between the nodes, and back */
  seqparScanLasp1 = 6, /**< baseline: a blocking, unpipelined chain */
  seqparScanLasp2 = 7  /**< baseline: all-gather of all states, then a local combine */
} seqparScanAlgorithm_t;

/** Flags of one packed sequence on this rank, in scan order (in reverse: swap "first" and "last", "begins" and "ends").
 */
#define SEQPAR_SCAN_RESET_IN 1u /**< a sequence begins at my first token: prefix = 0 and total = S */
#define SEQPAR_SCAN_CUT 2u      /**< a sequence begins at a later token of mine: total = S */

/**
 * Parameters of an All-Scan. Start from SEQPAR_ALL_SCAN_PARAMS_INITIALIZER. All ranks give the same values, except for
 * `flags`, which are each rank's own.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparAllScanParams_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int op;           /**< a seqparScanOp_t */
  int direction;    /**< a seqparDirection_t */
  int64_t heads;    /**< heads, with the batch folded in; 0: nothing to do, whatever the algorithm */
  int64_t dk;       /**< rows of a head's state, at least 1; 0 only where heads is 0 */
  int64_t dv;       /**< columns of a head's state, at least 1; 0 only where heads is 0 */
  int stateType;    /**< a seqparDataType_t: of state, initial, prefix and total */
  int wireType;     /**< a seqparDataType_t: states are rounded to it when sent. Arithmetic is always fp32 */
  int decayForm;    /**< a seqparDecayForm_t; linear for SUM and MATRIX */
  /** Packed sequences that `flags` speaks of; divides heads; head h belongs to sequence h / (heads/sequences). */
  int64_t sequences;
  const uint8_t* flags; /**< [sequences] of SEQPAR_SCAN_* bits; in host memory on every communicator, also one on a
                             device, since they are read during the call. NULL: none set */
  int algorithm;        /**< a seqparScanAlgorithm_t */
  int blocks;           /**< the number of blocks K to aim at; 0: chosen by the cost model */
} seqparAllScanParams_t;

#define SEQPAR_ALL_SCAN_PARAMS_INITIALIZER                                                                           \
  {                                                                                                                  \
    sizeof(seqparAllScanParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparScanDiag, seqparForward, 0, 0, 0, \
        seqparFloat32, seqparFloat32, seqparDecayLinear, 1, (const uint8_t*)0, seqparScanAuto, 0                     \
  }

/**
 * All-Scan, collective over `comm`.
 *
 *   state       [heads][dk][dv] of stateType, row-major: S of this rank
 *   transition  A of this rank, fp32, shaped as seqparScanOp_t says; NULL for SUM only. A factor of exactly 0 (in
 *               MATRIX: an element of the matrix) forgets what it would multiply, NaN and infinity included
 *   initial     [heads][dk][dv] of stateType: x_0. Read at position 0 only, but what is given elsewhere
 *               must be a buffer too, which overlaps no output. NULL: zeros
 *   prefix      [heads][dk][dv] of stateType, out: x_p. NULL: not wanted. Position 0 gets initial, or zeros
 *   total       [heads][dk][dv] of stateType, out: x_(p+1). NULL: not wanted. On the last position the final state
 *
 * Which outputs are wanted may differ between ranks; at least one must be. prefix or total may be the same pointer as
 * state (in place); any other overlap between the buffers is an error. Inputs must stay unchanged, and outputs unread,
 * until the work is done on `stream`. Results do not depend on timing. Algorithms agree bit for bit where the
 * arithmetic is exact. Elsewhere they differ by rounding, and in one thing more: DOUBLING, and HIER between nodes,
 * multiply the factors of several positions before they meet a state. Where such a product underflows or cancels to 0
 * and none of its factors is 0, they forget NaN and infinity that the other algorithms carry on: factors of 1e-25 on
 * two positions are enough.
 * MATRIX between GPUs that reach each other's memory multiplies on tensor cores, which take
 * subnormal numbers for 0: each number of A and x enters a product with an absolute error of up to 2^-126, and one
 * below 2^-126 not at all, so results with such numbers differ from those of hosts. S is added as it is.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, negative or overflowing shapes, unknown enumerators, overlap, a device
 * pointer on a host communicator, flags outside the known bits), InvalidUsage (HIER where the ranks of a node are not
 * neighbors, an algorithm that cannot do this shape: CHAIN and LASP1 can do all, but for MATRIX between GPUs that
 * reach each other's memory, where dk is at most 752, or 1520 with 16 bits on the wire), RemoteError.
 */
SEQPAR_API seqparResult_t seqparAllScan(const void* state, const void* transition, const void* initial, void* prefix,
                                        void* total, const seqparAllScanParams_t* params, seqparComm_t comm,
                                        void* stream);

/** What the cost model says of one algorithm for one shape. */
typedef struct {
  int algorithm;  /**< a seqparScanAlgorithm_t, not Auto */
  int blocks;     /**< K */
  double modelUs; /**< predicted time, us; infinity where the algorithm cannot do this shape */
} seqparScanEstimate_t;

#define SEQPAR_SCAN_ALGORITHMS 7 /**< number of algorithms beside Auto */

/**
 * Stores the choice for `params` in estimates[0] and all algorithms, fastest first, in
 * estimates[1..SEQPAR_SCAN_ALGORITHMS]. If params names an algorithm, or SEQPAR_ALGO does, the choice is that one.
 * `estimates` has SEQPAR_SCAN_ALGORITHMS + 1 entries. Not collective, and the same on all ranks. Errors: as
 * seqparAllScan for params.
 */
SEQPAR_API seqparResult_t seqparAllScanPlan(const seqparAllScanParams_t* params, seqparComm_t comm,
                                            seqparScanEstimate_t* estimates);

/** The name of an algorithm as SEQPAR_ALGO and the perf binaries spell it ("chain"); NULL for a number that is none. */
SEQPAR_API const char* seqparScanAlgorithmName(int algorithm);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SCAN_H_ */
