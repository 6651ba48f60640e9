/*
 * seqpar/attn_layout.h - layouts that balance a mask of softmax attention, and the load of any layout. The functions
 * need no communicator, send nothing, and give equal results in every process.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply, except that seqparAttnGetLastError() of attn.h returns the text of an error.
 */
#ifndef SEQPAR_ATTN_LAYOUT_H_
#define SEQPAR_ATTN_LAYOUT_H_

#include "seqpar/attn_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Parameters of seqparAttnSolveLayout(). Start from SEQPAR_ATTN_SOLVE_INITIALIZER. */
typedef struct {
  size_t size;      /**< sizeof(seqparAttnSolve_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t granule;  /**< pieces start at multiples of this many tokens of their part where the balance allows it, at
                         least 1 */
} seqparAttnSolve_t;

#define SEQPAR_ATTN_SOLVE_INITIALIZER \
  { sizeof(seqparAttnSolve_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 128 }

/**
 * Computes the pieces of a layout (seqparPieces) with equal numbers of tokens on all ranks, up to one, and nearly equal
 * numbers of visible scores. There are at most 2 * ranks - 1 pieces. A causal mask gives the zigzag layout.
 *
 * Method: the tokens of a group of ranks are on a circle. A window with half of them, turned round once, has half of
 * the scores on average, so at some position it has half of both. The window is the part of half of the ranks, which is
 * split in the same way (splitting necklaces, Alon 1987). Among the positions that balance the scores up to 1/512, the
 * window is at the one with the fewest keys that either half needs from the other. The time is O(n log(n)) for n
 * slices; up to some thousand slices a few positions are compared, more slices use the first position.
 *
 *   desc     batch, tokens, kvTokens, mask, window, packed sequences and slices count; layouts and lengths are not
 *            read. Linear attention needs no layout. Cross-attention: the layout is that of the queries
 *   ranks    number of ranks, 1 to 2^20
 *   params   NULL: the initializer's
 *   bounds   [2 * ranks], out: the first *pieces + 1 are seqparLayout_t's pieceBounds
 *   owners   [2 * ranks - 1], out: the first *pieces are seqparLayout_t's pieceOwners
 *   pieces   out: number of pieces, at least 1
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a bad description, ranks or granule), InvalidUsage (linear attention),
 * SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparAttnSolveLayout(const seqparAttnDesc_t* desc, int ranks,
                                                const seqparAttnSolve_t* params, int64_t* bounds, int* owners,
                                                int64_t* pieces);

/** The load of one rank. */
typedef struct {
  int64_t tokens;     /**< queries */
  int64_t scores;     /**< visible scores of these queries, per head */
  int64_t keysNeeded; /**< keys of other ranks that these queries see; cross-attention: all keys that they see */
  int64_t bands;      /**< rectangles with a band that the block kernels compute, if the keys are in the order of their
                           positions */
} seqparAttnLoad_t;

/**
 * Stores the load of each rank of a layout, in loads[layout->ranks]. `desc` is read as by seqparAttnSolveLayout(), and
 * layout->tokens are its tokens. Errors: as above; InvalidArgument (a bad layout, or of other tokens).
 */
SEQPAR_API seqparResult_t seqparAttnLayoutLoad(const seqparAttnDesc_t* desc, const seqparLayout_t* layout,
                                               seqparAttnLoad_t* loads);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_LAYOUT_H_ */
