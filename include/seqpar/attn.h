/*
 * attn.h - attention over a sequence that is sharded across ranks. Library: libseqpar_attn, on top of libseqpar.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too, with one difference: the text of an error is seqparAttnGetLastError()'s.
 */
#ifndef SEQPAR_ATTN_H_
#define SEQPAR_ATTN_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The text of the latest failed call into this library by the calling thread: the call, the argument, its value and
 * what was expected. An empty string if there was none. It lives until the thread's next failed call. Never NULL.
 */
SEQPAR_API const char* seqparAttnGetLastError(void);

/* ---------------------------------------------------------------------------------------------------------------------
 * Gated linear attention (GLA)
 *
 * For each batch entry and head, with a state S of dk x dv and S_0 = initial (or 0), token t = 1, 2, ... of the whole
 * sequence gives
 *
 *     S_t = diag(exp(logDecay_t)) S_(t-1) + k_t v_t^T          o_t = scale * q_t^T S_t
 *
 * The sequence lies on the ranks in rank order, each holding `tokens` consecutive tokens of its own choice.
 *
 * Source: GLA (arXiv 2312.06635); distributed by ZeCO (arXiv 2507.01004): each rank computes the states of its chunks,
 * one All-Scan carries the states across the ranks while the ranks compute what needs no earlier token, and a last pass
 * adds what the incoming state contributes.
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * Parameters of gated linear attention. Start from SEQPAR_GLA_PARAMS_INITIALIZER. All ranks give the same values except
 * for `tokens`, which is each rank's own.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparGlaParams_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t batch;    /**< sequences of equal length, at least 1 */
  int64_t tokens;   /**< tokens of each sequence on this rank; 0 is allowed */
  int64_t heads;    /**< heads, at least 1 */
  int64_t dk;       /**< length of a query and of a key, at least 1 */
  int64_t dv;       /**< length of a value, at least 1 */
  int dataType;     /**< seqparFloat32: of q, k, v and out. Decays and states are always fp32 */
  int wireType;     /**< a seqparDataType_t: states are rounded to it when they are sent */
  float scale;      /**< multiplies q; 0: 1/sqrt(dk) */
  int algorithm;    /**< a seqparScanAlgorithm_t: how states travel. seqparScanChain is the paper's */
  int blocks;       /**< the number of blocks of the scan's pipeline; 0: chosen by the cost model */
} seqparGlaParams_t;

#define SEQPAR_GLA_PARAMS_INITIALIZER                                                                                 \
  {                                                                                                                   \
    sizeof(seqparGlaParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 1, 0, 1, 0, 0, seqparFloat32, seqparFloat32, \
        0.0f, seqparScanAuto, 0                                                                                       \
  }

/**
 * Forward pass of gated linear attention on host memory; collective over `comm`. With comm NULL the caller has the
 * whole sequence and nothing is sent.
 *
 *   q, k         [batch][tokens][heads][dk] of dataType, row-major. This order, tokens before heads, is a choice: it is
 *                what projections in the common frameworks produce
 *   v            [batch][tokens][heads][dv] of dataType
 *   logDecay     [batch][tokens][heads][dk] fp32: natural logarithms of the decay. -inf forgets the row's past. Values
 *                above 0 make the state grow and may overflow; they are not refused
 *   initial      [batch][heads][dk][dv] fp32: S_0. Read on rank 0 only; NULL: zeros
 *   out          [batch][tokens][heads][dv] of dataType, out: o_t of this rank's tokens
 *   savedState   [batch][heads][dk][dv] fp32, out: the state before this rank's first token, from which a backward pass
 *                can start without the forward's communication. NULL: not wanted
 *   finalState   [batch][heads][dk][dv] fp32, out: the state after this rank's last token; on the last rank that of the
 *                sequence. NULL: not wanted
 *
 * With tokens = 0 the arrays of tokens may be NULL and the state passes through. No output may overlap an input or
 * another output. Which of savedState and finalState are wanted may differ between ranks.
 *
 * `stream` is a seqparStream_t, or NULL to run to completion in the call. Inputs must stay unchanged, and outputs
 * unread, until the work is done on `stream`. If the scan fails there, seqparStreamSynchronize() returns its error and
 * `out` is not valid. Each rank computes with one thread, and with one more for what it overlaps. Results do not depend
 * on timing; a different number of ranks changes the rounding.
 *
 * With more than one rank the call needs workspace of about batch * heads * dk * dv * (tokens / 64 + 2) * 4 bytes.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, sizes out of range or overflowing, unknown enumerators, overlap, a
 * scale that is not finite), InvalidUsage (a communicator of device memory; as seqparAllScan), SystemError (no memory),
 * RemoteError.
 */
SEQPAR_API seqparResult_t seqparGlaForward(const void* q, const void* k, const void* v, const float* logDecay,
                                           const float* initial, void* out, float* savedState, float* finalState,
                                           const seqparGlaParams_t* params, seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_H_ */
