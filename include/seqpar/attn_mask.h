/*
 * seqpar/attn_mask.h - masks of softmax attention as lists of slices, for seqparAttnDesc_t.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The mask is the union of its slices. Two slices never contain the same pair of a query and a key. Usual masks have
 * few slices; N is the number of tokens:
 *
 *     packed causal documents             CAUSAL(d, e, d, e) for each document
 *     prefix-LM, prefix of p tokens       FULL(0, p, 0, p), CAUSAL(p, N, 0, N)
 *     shared prefix, answers a to b       CAUSAL(0, p, 0, p); for each answer FULL(a, b, 0, p) and CAUSAL(a, b, a, b)
 *     causal, w keys with the own key     CAUSAL(0, w, 0, w), BICAUSAL(w, N, 1, N)
 *     block-causal frames f to g          FULL(f, g, 0, g) for each frame
 */
#ifndef SEQPAR_ATTN_MASK_H_
#define SEQPAR_ATTN_MASK_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A part of a mask, in positions of the whole sequence. Query `row` + i (0 <= i < rows) sees key `column` + j (0 <= j <
 * columns) if i + lower <= j <= i + upper. Bounds of INT64_MIN and INT64_MAX are no limits. A slice without rows,
 * columns or visible keys is allowed.
 */
typedef struct {
  int64_t row;     /**< position of the first query */
  int64_t rows;    /**< number of queries */
  int64_t column;  /**< position of the first key */
  int64_t columns; /**< number of keys */
  int64_t lower;   /**< lower bound of the band */
  int64_t upper;   /**< upper bound of the band */
} seqparAttnSlice_t;

#define SEQPAR_ATTN_MOST_SLICES 1048576 /**< slices of a mask */

/** Queries q0 to q1 - 1 see all keys k0 to k1 - 1. */
#define SEQPAR_ATTN_SLICE_FULL(q0, q1, k0, k1) \
  { (q0), (q1) - (q0), (k0), (k1) - (k0), INT64_MIN, INT64_MAX }
/** The last query sees all keys, and each query before it one key less. */
#define SEQPAR_ATTN_SLICE_CAUSAL(q0, q1, k0, k1) \
  { (q0), (q1) - (q0), (k0), (k1) - (k0), INT64_MIN, ((k1) - (k0)) - ((q1) - (q0)) }
/** The first query sees all keys, and each query after it one key less. */
#define SEQPAR_ATTN_SLICE_INVERSE_CAUSAL(q0, q1, k0, k1) \
  { (q0), (q1) - (q0), (k0), (k1) - (k0), 0, INT64_MAX }
/** Both: the first query sees the first keys and the last query the last keys, (k1 - k0) - (q1 - q0) + 1 each. */
#define SEQPAR_ATTN_SLICE_BICAUSAL(q0, q1, k0, k1) \
  { (q0), (q1) - (q0), (k0), (k1) - (k0), 0, ((k1) - (k0)) - ((q1) - (q0)) }

/**
 * Consecutive keys of one request in a paged KV cache. The columns of all pages are the plan's keys (kvTokens): a
 * kvLayout of pieces, one for each page, assigns them to ranks, and a rank's keys are its pages in order of columns.
 */
typedef struct {
  int64_t column;   /**< position of the page's first key in the plan's keys */
  int64_t request;  /**< index of the request; -1: the page is not in use */
  int64_t position; /**< position of the first key in the request's sequence */
  int64_t keys;     /**< keys in use: columns `column` to `column` + keys - 1 */
} seqparAttnPage_t;

/**
 * Computes the slices of chunked prefill: causal attention of the new queries of several requests to their cached keys,
 * the new ones included, in pages of any order. The last query of a request has the position of its last key. Host
 * only, without a communicator.
 *
 *   cuQueries   [requests + 1]: start of each request's queries in the plan's tokens, ascending from 0
 *   lengths     [requests]: keys of each request, at least its queries
 *   page        [pages]. Pages that several requests share (a common prefix) are listed once for each
 *   windowLeft  maximum number of visible keys before a query's own; SEQPAR_ATTN_NO_WINDOW: all
 *   slice       [pages], out: for seqparAttnDesc_t::slice, with mask = seqparAttnFull
 *   slices      out: number of slices, at most `pages`: pages that continue each other share one, as do neighbors
 *               that all queries of the request see; pages that no query sees have none
 *
 * Keys that no page contains are seen by no query. seqparAttnPlanCreate() refuses two pages with common keys of a
 * request in the same columns. RING_PASS_Q sends queries instead of keys, ALLGATHER_KV and RING send keys (Context
 * Parallelism for Scalable Million-Token Inference, arXiv 2411.01783, sections 3.3 and 3.4). Errors: InvalidArgument
 * (NULL, a value out of range).
 */
SEQPAR_API seqparResult_t seqparAttnPageSlices(const int64_t* cuQueries, const int64_t* lengths, int64_t requests,
                                               const seqparAttnPage_t* page, int64_t pages, int64_t windowLeft,
                                               seqparAttnSlice_t* slice, int64_t* slices);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_MASK_H_ */
