/*
 * seqpar/layout.h - which rank holds which tokens of a sequence, and moving rows from one layout to another.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too.
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
 * A layout gives each of `tokens` tokens to exactly one rank. On every rank the tokens lie in ascending order, whatever
 * the layout: local index 0 is the rank's first token of the sequence. The functions here need no communicator and send
 * nothing. Without packing and slices they take constant time, or a logarithm of `ranks`; with packing, time that grows
 * with `sequences`.
 *
 * Where lengths do not divide, the tokens that are left over are dealt one a rank, beginning with rank 0, so that two
 * ranks differ by at most one token. With packing, the dealing goes on from sequence to sequence: what is left over of
 * the next sequence begins at the rank after the last one that was served. (Block r of CONTIGUOUS is then what
 * numpy.array_split gives.)
 * -------------------------------------------------------------------------------------------------------------------
 */

/** Which rank holds which tokens, with P ranks. */
typedef enum {
  /** P chunks; rank r has chunk r. */
  seqparContiguous = 0,
  /** 2P chunks; rank r has chunks r and 2P-1-r, which balances causal attention (Zigzag Ring Attention). Left-over
      tokens go to the first halves of all ranks, then to the second halves. */
  seqparZigzag = 1,
  /** Blocks of `stripe` tokens dealt round robin (Striped Attention, arXiv 2311.09431, has stripe = 1). The last block
      of a sequence may be shorter, so that ranks may differ by as much as a stripe, with packing by more. */
  seqparStriped = 2
} seqparLayoutKind_t;

/** A layout. Start from SEQPAR_LAYOUT_INITIALIZER, which has no tokens on one rank. */
typedef struct {
  size_t size;      /**< sizeof(seqparLayout_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int kind;         /**< a seqparLayoutKind_t */
  int ranks;        /**< P, at least 1; may be more than there are tokens */
  int64_t tokens;   /**< length of the sequence, or of all packed sequences together; 0 to 2^48 */
  int64_t stripe;   /**< STRIPED: tokens of a block, 1 to 2^31 - 1. Not read for other kinds */
  /** Hybrids of all-to-all and ring (USP, arXiv 2405.07719): the layout is one of ranks / slices parts, and each part,
      as it lies in memory, is cut into `slices` contiguous slices of nearly equal length, held by consecutive ranks. An
      all-to-all between these ranks brings the part together. Divides `ranks`; 1: no slices. */
  int slices;
  /** Packed sequences, each laid out by itself. 0: there is one, or the layout is to apply to all tokens as a whole. */
  int64_t sequences;
  /** [sequences + 1]: where each sequence begins, ascending, the first 0 and the last `tokens`; empty sequences are
      allowed. Read during calls only. NULL with sequences = 0. */
  const int64_t* cuSeqlens;
} seqparLayout_t;

#define SEQPAR_LAYOUT_INITIALIZER                                                                      \
  {                                                                                                    \
    sizeof(seqparLayout_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparContiguous, 1, 0, 1, 1, 0, \
        (const int64_t*)0                                                                              \
  }

/** Stores the number of tokens on `rank`. Errors: InvalidArgument (NULL, a wrong magic, a bad layout or rank). */
SEQPAR_API seqparResult_t seqparLayoutLocalLength(const seqparLayout_t* layout, int rank, int64_t* length);

/** Stores where in the sequence the token `local` of `rank` stands. Errors: as above; InvalidArgument (local range). */
SEQPAR_API seqparResult_t seqparLayoutToGlobal(const seqparLayout_t* layout, int rank, int64_t local, int64_t* global);

/** Stores which rank holds token `global`, and its index there. Errors: as above; InvalidArgument (global range). */
SEQPAR_API seqparResult_t seqparLayoutToLocal(const seqparLayout_t* layout, int64_t global, int* rank, int64_t* local);

/** Stores the global index of every token of `rank`, such as for rotary embeddings: globals[local length]. Errors: as
 * seqparLayoutLocalLength(). */
SEQPAR_API seqparResult_t seqparLayoutGlobals(const seqparLayout_t* layout, int rank, int64_t* globals);

/**
 * `count` blocks of `length` tokens each. Block i begins at token `global` + i * `stride` of the sequence and at token
 * `local` + i * `length` of the rank.
 */
typedef struct {
  int64_t local;  /**< the rank's token at which the first block begins */
  int64_t global; /**< the token of the sequence at which it begins */
  int64_t length; /**< tokens of a block */
  int64_t count;  /**< number of blocks */
  int64_t stride; /**< from a block to the next, in the sequence; at least `length`; 0 with one block */
} seqparLayoutRun_t;

/**
 * Stores the number of runs of `rank`, and the first `capacity` of them, ascending, in runs[capacity]; NULL with
 * capacity 0. A sequence gives at most two runs a rank, and the ends of a slice may cut one into three. Errors: as
 * seqparLayoutLocalLength(); InvalidArgument (capacity below 0).
 */
SEQPAR_API seqparResult_t seqparLayoutRuns(const seqparLayout_t* layout, int rank, seqparLayoutRun_t* runs,
                                           int64_t capacity, int64_t* count);

/**
 * Where packed sequences begin among the tokens of `rank`, as attention kernels want it:
 * localCuSeqlens[s] is the number of this rank's tokens before cuSeqlens[s], for s in 0..sequences. The sequences are
 * given apart from the layout, so that this serves layouts of the whole as well. Errors: as seqparLayoutLocalLength();
 * InvalidArgument (`sequences` below 1, a packing that does not ascend or end at the number of tokens).
 */
SEQPAR_API seqparResult_t seqparLayoutLocalCuSeqlens(const seqparLayout_t* layout, int rank, const int64_t* cuSeqlens,
                                                     int64_t sequences, int64_t* localCuSeqlens);

/* ---------------------------------------------------------------------------------------------------------------------
 * Redistribution
 *
 * A plan has all routes from one layout to another for one communicator, and is used as often as wanted. It moves bytes
 * and changes none, so that its adjoint is its inverse: the plan with the two layouts swapped. Each row that changes
 * ranks is sent once, and rows that stay are copied.
 * -------------------------------------------------------------------------------------------------------------------
 */

typedef struct seqparRedistributePlan* seqparRedistributePlan_t; /**< routes between two layouts on one communicator */

/**
 * Makes a plan for `tensors` tensors that move together, such as q, k, v and the logarithms of the sums. On each rank
 * tensor t is [outer[t]][local tokens][rowBytes[t]], contiguous: outer is the batch of [batch][tokens][heads][d], the
 * heads of [heads][tokens]. `outer` NULL: all 1. Both layouts have as many ranks as `comm` and equally many tokens;
 * their packing may differ.
 *
 * Collective over `comm`, with equal arguments; sends nothing, except to compare the arguments where
 * seqparConfig_t::checkArguments is set. The layouts and arrays are not needed after the call.
 *
 * Errors: InvalidArgument (NULL, a bad layout, layouts that do not fit each other or `comm`, sizes below 0 or
 * overflowing), SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparRedistributePlanCreate(seqparRedistributePlan_t* plan, const seqparLayout_t* from,
                                                       const seqparLayout_t* to, int tensors, const int64_t* outer,
                                                       const int64_t* rowBytes, seqparComm_t comm);

/** Frees a plan; work that was enqueued with it goes on. NULL is allowed. Errors: InvalidArgument (no plan). */
SEQPAR_API seqparResult_t seqparRedistributePlanDestroy(seqparRedistributePlan_t plan);

/**
 * Moves all tensors of a plan; collective over the plan's communicator, which must still exist.
 *
 *   send      [tensors] pointers to the tensors in the layout `from`
 *   receive   [tensors] pointers to where they go in the layout `to`
 *
 * A pointer to no bytes may be NULL. No receive buffer may overlap any other buffer. The arrays of pointers are read
 * during the call; send buffers must stay unchanged, and receive buffers unread, until the work is done on `stream`.
 *
 * Errors: InvalidArgument (NULL, no plan, a communicator that is gone, overlap, memory of the wrong kind), RemoteError.
 */
SEQPAR_API seqparResult_t seqparRedistribute(seqparRedistributePlan_t plan, const void* const* send,
                                             void* const* receive, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_LAYOUT_H_ */
