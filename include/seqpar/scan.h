/*
 * seqpar/scan.h - All-Scan: composition of linear-attention states over all ranks. Included by seqpar.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply.
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
 * Position p of a scan is rank p in the forward direction and rank nranks-1-p in the reverse direction. Position p
 * contributes a state S_p and a transition A_p. With x_0 = initial (or 0):
 *
 *     prefix_p = x_p                       the state before position p   (exclusive scan)
 *     total_p  = x_(p+1) = A_p x_p + S_p   the state after position p    (inclusive scan)
 *
 * Source: ZeCO, "Zero Communication Overhead Sequence Parallelism for Linear Attention" (arXiv 2507.01004), All-Scan:
 * the DIAG operator with the CHAIN algorithm. Baselines: LASP-1 (arXiv 2404.02882), LASP-2 (arXiv 2502.07563).
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Kind of the transition A_p; determines the shape of the `transition` argument (fp32, row-major). */
typedef enum {
  seqparScanSum = 0,    /**< A = 1; `transition` is NULL. Plain linear attention */
  seqparScanScalar = 1, /**< one factor per head: [heads]. RetNet, Lightning Attention, Mamba-2 */
  seqparScanDiag = 2,   /**< one factor per row of the state: [heads][dk]. GLA */
  seqparScanMatrix =
      3 /**< a matrix per head: [heads][dk][dk], x -> A x; in reverse x -> A^T x. DeltaNet, KDA, RWKV-7 */
} seqparScanOp_t;

typedef enum {
  seqparForward = 0, /**< from rank 0 to the last rank */
  seqparReverse = 1  /**< from the last rank to rank 0; gradients of states */
} seqparDirection_t; /**< direction of the states */

/** Encoding of the factors of a SCALAR or DIAG transition. Logarithms are exponentiated once, in fp32. */
typedef enum {
  seqparDecayLinear = 0, /**< the factor itself */
  seqparDecayLog = 1,    /**< its natural logarithm; -inf is factor 0 */
  seqparDecayLog2 = 2    /**< its logarithm to base 2; -inf is factor 0 */
} seqparDecayForm_t;

/** Scan algorithm. */
typedef enum {
  seqparScanAuto =
      0, /**< lowest predicted time by the measured cost model; the same on all ranks. SEQPAR_ALGO overrides it */
  seqparScanChain = 1,      /**< ZeCO: a pipeline through the ranks in K blocks; one hop per rank and block */
  seqparScanOneshot = 2,    /**< every rank reads and combines the states of all earlier positions */
  seqparScanTransposed = 3, /**< all-to-all, each rank scans its shard of all positions, all-to-all back: 2 hops */
  /** Recursive doubling, exclusive: ceil(log2(P-1) + log2(4/3)) rounds (Traeff, arXiv 2507.04785). */
  seqparScanDoubling = 4,
  seqparScanHier = 5,  /**< TRANSPOSED inside a node, a chain of shards between the nodes, and back */
  seqparScanLasp1 = 6, /**< baseline: a blocking, unpipelined chain */
  seqparScanLasp2 = 7  /**< baseline: all-gather of all states, then a local combine */
} seqparScanAlgorithm_t;

/** Flags of one packed sequence on this rank, in scan order (in reverse, exchange first and last, start and end). */
#define SEQPAR_SCAN_RESET_IN 1u /**< a sequence starts at this rank's first token: prefix = 0 and total = S */
#define SEQPAR_SCAN_CUT 2u      /**< a sequence starts at a later token of this rank: total = S */

/**
 * Parameters of an All-Scan. Start from SEQPAR_ALL_SCAN_PARAMS_INITIALIZER. All ranks pass the same values, except for
 * `flags`.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparAllScanParams_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int op;           /**< a seqparScanOp_t */
  int direction;    /**< a seqparDirection_t */
  int64_t heads;    /**< heads times batch; 0: no work, whatever the algorithm */
  int64_t dk;       /**< rows of a head's state, at least 1; 0 only if heads is 0 */
  int64_t dv;       /**< columns of a head's state, at least 1; 0 only if heads is 0 */
  int stateType;    /**< a seqparDataType_t: of state, initial, prefix and total */
  int wireType;     /**< a seqparDataType_t: type of sent states (rounded). Arithmetic is always fp32 */
  int decayForm;    /**< a seqparDecayForm_t; linear for SUM and MATRIX */
  /** Packed sequences, the length of `flags`; divides heads; head h belongs to sequence h / (heads/sequences). */
  int64_t sequences;
  const uint8_t* flags; /**< [sequences] of SEQPAR_SCAN_* bits; always in host memory, read during the call. NULL: none
                             set */
  int algorithm;        /**< a seqparScanAlgorithm_t */
  int blocks;           /**< requested number of blocks K; 0: chosen by the cost model */
  /** 1: products of the transitions of neighboring positions do not overflow fp32, for example because no factor is
     above 1 in absolute value; AUTO may choose algorithms that form such products. 0 (default): products may overflow.
     See "Products of transitions" below. */
  int bounded;
} seqparAllScanParams_t;

#define SEQPAR_ALL_SCAN_PARAMS_INITIALIZER                                                                           \
  {                                                                                                                  \
    sizeof(seqparAllScanParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparScanDiag, seqparForward, 0, 0, 0, \
        seqparFloat32, seqparFloat32, seqparDecayLinear, 1, (const uint8_t*)0, seqparScanAuto, 0, 0                  \
  }

/**
 * All-Scan, collective over `comm`.
 *
 *   state       [heads][dk][dv] of stateType, row-major: S of this rank
 *   transition  A of this rank, fp32, shape as in seqparScanOp_t; NULL for SUM only. A factor of exactly 0 (MATRIX:
 *               an element of the matrix) discards its operand, including NaN and infinity
 *   initial     [heads][dk][dv] of stateType: x_0. Read at position 0 only; elsewhere a non-NULL pointer must still
 *               be a valid buffer that overlaps no output. NULL: zeros
 *   prefix      [heads][dk][dv] of stateType, out: x_p, or NULL. Position 0 receives initial, or zeros
 *   total       [heads][dk][dv] of stateType, out: x_(p+1), or NULL. On the last position the final state
 *
 * The set of requested outputs may differ between ranks; at least one is required. prefix or total may be the same
 * pointer as state (in place); any other overlap between the buffers is an error. Inputs must stay unchanged, and
 * outputs unread, until the work is done on `stream`.
 *
 * Results do not depend on timing. All algorithms give the same bits where the arithmetic is exact. Otherwise they
 * differ by rounding and by products of transitions.
 *
 * Products of transitions: most algorithms apply transitions to states only. DOUBLING with more than 4 ranks, HIER
 * between nodes over NCCL, and HIER between nodes of hosts with `bounded` multiply the transitions of several positions
 * before they apply the product to a state (SUM has none). A product can overflow although no state does: factors of
 * 1e25 on two positions become infinity, which turns a state of 0 into NaN and a small state into infinity. A product
 * that underflows or cancels to 0 without a factor of 0 (for example 1e-25 on two positions) discards NaN and infinity,
 * which the other algorithms propagate. AUTO chooses these algorithms only with `bounded`; if params->algorithm or
 * SEQPAR_ALGO names one, it runs for all transitions.
 *
 * MATRIX between GPUs that map each other's memory uses tensor cores, which flush subnormals to 0: each element of A
 * and x has an absolute error of up to 2^-126 in a product, so results with such values differ from those of hosts. S
 * is added unchanged.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, negative or overflowing shapes, unknown enumerators, overlap, a device
 * pointer on a host communicator, unknown flag bits), InvalidUsage (HIER if the ranks of a node are not neighbors; an
 * algorithm that does not support the shape: CHAIN and LASP1 support all shapes, except MATRIX between GPUs that map
 * each other's memory, with dk at most 752, or 1520 with 16 bits on the wire), RemoteError.
 */
SEQPAR_API seqparResult_t seqparAllScan(const void* state, const void* transition, const void* initial, void* prefix,
                                        void* total, const seqparAllScanParams_t* params, seqparComm_t comm,
                                        void* stream);

/** Prediction of the cost model for one algorithm and one shape. */
typedef struct {
  int algorithm;  /**< a seqparScanAlgorithm_t, not Auto */
  int blocks;     /**< K */
  double modelUs; /**< predicted time, us; infinity if the algorithm does not support the shape */
} seqparScanEstimate_t;

#define SEQPAR_SCAN_ALGORITHMS 7 /**< number of algorithms, without Auto */

/**
 * Stores the choice for `params` in estimates[0] and all algorithms, fastest first, in
 * estimates[1..SEQPAR_SCAN_ALGORITHMS]. If params or SEQPAR_ALGO name an algorithm, it is the choice. `estimates` has
 * SEQPAR_SCAN_ALGORITHMS + 1 entries. Not collective; equal on all ranks. Errors: as seqparAllScan for params.
 */
SEQPAR_API seqparResult_t seqparAllScanPlan(const seqparAllScanParams_t* params, seqparComm_t comm,
                                            seqparScanEstimate_t* estimates);

/** Name of an algorithm as in SEQPAR_ALGO and the perf binaries ("chain"); NULL for an unknown id. */
SEQPAR_API const char* seqparScanAlgorithmName(int algorithm);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SCAN_H_ */
