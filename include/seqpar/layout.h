/*
 * seqpar/layout.h - assignment of tokens to ranks, and redistribution from one layout to another.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply.
 */
#ifndef SEQPAR_LAYOUT_H_
#define SEQPAR_LAYOUT_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Layouts
 *
 * A layout assigns each of `tokens` tokens to exactly one rank. On every rank the tokens are in ascending order: local
 * index 0 is the rank's first token of the sequence. The functions here need no communicator and send nothing. Without
 * packing and slices they take constant time, or log(ranks); with packing or pieces, time proportional to `sequences`
 * or `pieces`.
 *
 * If lengths do not divide, the remaining tokens are dealt one per rank, starting with rank 0, so two ranks differ by
 * at most one token. With packing, the dealing continues from sequence to sequence: the remainder of the next sequence
 * starts at the rank after the last one served. (Block r of CONTIGUOUS then equals numpy.array_split.)
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Kind of a layout with P ranks. */
typedef enum {
  /** P chunks; rank r holds chunk r. */
  seqparContiguous = 0,
  /** 2P chunks; rank r holds chunks r and 2P-1-r, which balances causal attention (Zigzag Ring Attention). Remaining
      tokens are added to the first halves of all ranks, then to the second halves. */
  seqparZigzag = 1,
  /** Blocks of `stripe` tokens, dealt round robin (Striped Attention, arXiv 2311.09431: stripe = 1). The last block of
      a sequence may be shorter, so ranks may differ by up to a stripe, with packing by more. */
  seqparStriped = 2,
  /** Intervals of tokens, each on a rank of the caller's choice: `pieceBounds` and `pieceOwners`.
      seqparAttnSolveLayout() computes pieces that balance a mask. Not with packing. */
  seqparPieces = 3
} seqparLayoutKind_t;

/** A layout. Start from SEQPAR_LAYOUT_INITIALIZER: no tokens, one rank. */
typedef struct {
  size_t size;      /**< sizeof(seqparLayout_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int kind;         /**< a seqparLayoutKind_t */
  int ranks;        /**< P, at least 1; may exceed the number of tokens */
  int64_t tokens;   /**< length of the sequence, or of all packed sequences together; 0 to 2^48 */
  int64_t stripe;   /**< STRIPED: tokens per block, 1 to 2^31 - 1. Not read for other kinds */
  /** Hybrids of all-to-all and ring (USP, arXiv 2405.07719): the layout has ranks / slices parts. The tokens of each
      part, in local order, are cut into `slices` contiguous slices of nearly equal length on consecutive ranks. An
      all-to-all between these ranks gathers the part. Divides `ranks`; 1: no slices. */
  int slices;
  /** Packed sequences, each laid out separately. 0: one sequence, or the layout applies to all tokens as a whole. */
  int64_t sequences;
  /** [sequences + 1]: start of each sequence, ascending, the first 0 and the last `tokens`; empty sequences are
      allowed. Read during calls only. NULL with sequences = 0. */
  const int64_t* cuSeqlens;
  int64_t pieces; /**< PIECES: number of pieces, at least 1. Not read for other kinds */
  /** PIECES: [pieces + 1]: start of each piece, ascending, the first 0 and the last `tokens`; empty pieces are allowed.
      Read during calls only */
  const int64_t* pieceBounds;
  const int* pieceOwners; /**< PIECES: [pieces]: the rank of each piece; with slices the part. Read during calls only */
} seqparLayout_t;

#define SEQPAR_LAYOUT_INITIALIZER                                                                      \
  {                                                                                                    \
    sizeof(seqparLayout_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparContiguous, 1, 0, 1, 1, 0, \
        (const int64_t*)0, 0, (const int64_t*)0, (const int*)0                                         \
  }

/** Stores the number of tokens on `rank`. Errors: InvalidArgument (NULL, a wrong magic, a bad layout or rank). */
SEQPAR_API seqparResult_t seqparLayoutLocalLength(const seqparLayout_t* layout, int rank, int64_t* length);

/** Stores the index in the sequence of token `local` of `rank`. Errors: as above; InvalidArgument (local range). */
SEQPAR_API seqparResult_t seqparLayoutToGlobal(const seqparLayout_t* layout, int rank, int64_t local, int64_t* global);

/** Stores the rank that holds token `global`, and its local index. Errors: as above; InvalidArgument (global range). */
SEQPAR_API seqparResult_t seqparLayoutToLocal(const seqparLayout_t* layout, int64_t global, int* rank, int64_t* local);

/**
 * Stores the global index of every token of `rank`, for example for rotary embeddings: globals[local length]. Errors:
 * as seqparLayoutLocalLength().
 */
SEQPAR_API seqparResult_t seqparLayoutGlobals(const seqparLayout_t* layout, int rank, int64_t* globals);

/**
 * `count` blocks of `length` tokens each. Block i starts at token `global` + i * `stride` of the sequence and at token
 * `local` + i * `length` of the rank.
 */
typedef struct {
  int64_t local;  /**< local index of the first block */
  int64_t global; /**< global index of the first block */
  int64_t length; /**< tokens of a block */
  int64_t count;  /**< number of blocks */
  int64_t stride; /**< distance between block starts in the sequence; at least `length`; 0 with one block */
} seqparLayoutRun_t;

/**
 * Stores the number of runs of `rank`, and the first `capacity` of them, ascending, in runs[capacity]; NULL with
 * capacity 0. A sequence has at most two runs per rank, and the ends of a slice may cut one into three; adjacent pieces
 * of a rank are one run. Errors: as seqparLayoutLocalLength(); InvalidArgument (capacity below 0).
 */
SEQPAR_API seqparResult_t seqparLayoutRuns(const seqparLayout_t* layout, int rank, seqparLayoutRun_t* runs,
                                           int64_t capacity, int64_t* count);

/**
 * Bounds of packed sequences among the tokens of `rank`, in the form that attention kernels use: localCuSeqlens[s] is
 * the number of this rank's tokens before cuSeqlens[s], for s in 0..sequences. The sequences are separate arguments, so
 * layouts of the whole can be used. Errors: as seqparLayoutLocalLength(); InvalidArgument (`sequences` below 1, a
 * packing that does not ascend or end at the number of tokens).
 */
SEQPAR_API seqparResult_t seqparLayoutLocalCuSeqlens(const seqparLayout_t* layout, int rank, const int64_t* cuSeqlens,
                                                     int64_t sequences, int64_t* localCuSeqlens);

/* ---------------------------------------------------------------------------------------------------------------------
 * Redistribution
 *
 * A plan contains all routes from one layout to another for one communicator and can be used repeatedly. It only moves
 * bytes, so its adjoint is its inverse: the plan with the two layouts exchanged. Each row that changes ranks is sent
 * once; other rows are copied.
 * ---------------------------------------------------------------------------------------------------------------------
 */

typedef struct seqparRedistributePlan* seqparRedistributePlan_t; /**< routes between two layouts on one communicator */

/**
 * Creates a plan for `tensors` tensors that move together, for example q, k, v and log-sum-exps. On each rank tensor t
 * is [outer[t]][local tokens][rowBytes[t]], contiguous: outer is the batch of [batch][tokens][heads][d], or the heads
 * of [heads][tokens]. `outer` NULL: all 1. Both layouts have the ranks of `comm` and equal numbers of tokens; their
 * packing may differ.
 *
 * Collective over `comm`, with equal arguments; sends nothing, except the comparison of arguments if
 * seqparConfig_t::checkArguments is set. The layouts and arrays are not needed after the call.
 *
 * Errors: InvalidArgument (NULL, a bad layout, layouts that do not match each other or `comm`, sizes below 0 or
 * overflowing), SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparRedistributePlanCreate(seqparRedistributePlan_t* plan, const seqparLayout_t* from,
                                                       const seqparLayout_t* to, int tensors, const int64_t* outer,
                                                       const int64_t* rowBytes, seqparComm_t comm);

/** Frees a plan; enqueued work continues. NULL has no effect. Errors: InvalidArgument (no plan). */
SEQPAR_API seqparResult_t seqparRedistributePlanDestroy(seqparRedistributePlan_t plan);

/**
 * Moves all tensors of a plan; collective over the plan's communicator, which must still exist.
 *
 *   send      [tensors] pointers to the tensors in the layout `from`
 *   receive   [tensors] pointers to the tensors in the layout `to`
 *
 * A pointer to an empty tensor may be NULL. No receive buffer may overlap any other buffer. The arrays of pointers are
 * read during the call; send buffers must stay unchanged, and receive buffers unread, until the work is done on
 * `stream`.
 *
 * Errors: InvalidArgument (NULL, no plan, a destroyed communicator, overlap, memory of the wrong kind), RemoteError,
 * InternalError (host memory: another rank uses a plan of other layouts or tensors).
 */
SEQPAR_API seqparResult_t seqparRedistribute(seqparRedistributePlan_t plan, const void* const* send,
                                             void* const* receive, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_LAYOUT_H_ */
