/*
 * seqpar/exchange.h - exchanges of tokens and heads between the ranks of a sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply. For every function in this file: buffers are aligned to their elements; inputs
 * must stay unchanged, and outputs unread, until the work is done on `stream`; no output may overlap an input or
 * another output, except where stated; sums are computed in fp32 in member order and rounded once, so results depend
 * neither on timing nor on the transport.
 */
#ifndef SEQPAR_EXCHANGE_H_
#define SEQPAR_EXCHANGE_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Sequence to heads and back
 *
 * Ulysses sequence parallelism (DeepSpeed Ulysses, arXiv 2309.14509, section 3): before attention, an all-to-all gives
 * every member all tokens of some of the heads; after it, another returns all heads of its tokens. The transposition is
 * part of the transfer: nothing is packed before or unpacked after.
 *
 * Two row-major arrays of dataType:
 *
 *     sequence   [batch][tokens of the member][heads][headDim]
 *     head       [batch][tokens of all members][heads of the member][headDim]
 *
 * The query heads determine the heads of a member: they are assigned in consecutive runs, and if they do not divide,
 * the first members get one more. Keys and values (heads < queryHeads) are sent to the members that have their queries:
 * with fewer heads than members several members have the same head, and with uneven runs neighbors may share one. With
 * fewer query heads than members some members have none.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Shape of a head exchange. Start from SEQPAR_HEAD_SHARDS_INITIALIZER. All members pass the same values. */
typedef struct {
  size_t size;                    /**< sizeof(seqparHeadShards_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int dataType;                   /**< a seqparDataType_t */
  int64_t batch;                  /**< sequences of equal length, at least 0 */
  int64_t heads;                  /**< heads of the arrays, at least 1 */
  int64_t queryHeads;             /**< a multiple of `heads`; 0: the same as `heads` */
  int64_t headDim;                /**< elements of a head of a token, at least 0 */
  int64_t tokens;                 /**< of every member; not read if tokensOfMembers is given */
  const int64_t* tokensOfMembers; /**< [members]: of each, 0 or more. Read during the call. NULL: `tokens` each */
  const int* group;               /**< [groupSize]: the members' ranks in comm, each once. Read during the call. NULL:
                                       all ranks in order */
  int groupSize;                  /**< 0 without a group */
} seqparHeadShards_t;

#define SEQPAR_HEAD_SHARDS_INITIALIZER                                                                  \
  {                                                                                                     \
    sizeof(seqparHeadShards_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparFloat32, 1, 1, 0, 0, 0, \
        (const int64_t*)0, (const int*)0, 0                                                             \
  }

/**
 * Stores the heads of member `member` of `members` in head arrays: `count` heads starting at `first`; both are 0 for a
 * member without heads. queryHeads as in seqparHeadShards_t. Needs no communicator. Errors: InvalidArgument (NULL,
 * values out of range).
 */
SEQPAR_API seqparResult_t seqparHeadsOfMember(int64_t heads, int64_t queryHeads, int members, int member,
                                              int64_t* first, int64_t* count);

/**
 * From `sequence` to `head`; collective over the members. A head with several members is copied to each. A member
 * without heads passes NULL as `head`, or an address outside `sequence`. Errors: InvalidArgument (NULL, a wrong magic,
 * sizes out of range or overflowing, a group without this rank, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparSequenceToHeads(const void* sequence, void* head, const seqparHeadShards_t* shards,
                                                seqparComm_t comm, void* stream);

/**
 * From `head` to `sequence`; collective over the members. The contributions of several members to one head are added:
 * the adjoint of seqparSequenceToHeads(), as for gradients of keys and values, and its inverse if every head has one
 * owner. Errors: as seqparSequenceToHeads(); InvalidUsage (on a GPU during stream capture: more parts than fit a
 * kernel's parameters; the text contains both numbers).
 */
SEQPAR_API seqparResult_t seqparHeadsToSequence(const void* head, void* sequence, const seqparHeadShards_t* shards,
                                                seqparComm_t comm, void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Gather and scatter along the sequence
 *
 * A row-major array [outer][tokens][inner] of dataType is distributed by tokens over the members of a group: a shard is
 * [outer][tokens of the member][inner], and the whole array contains the shards in member order. For an unstructured
 * array of `count` elements per rank: outer = 1, tokens = 1, inner = count.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Shape of a sharded array. Start from SEQPAR_SHARDS_INITIALIZER. All members pass the same values. */
typedef struct {
  size_t size;                    /**< sizeof(seqparShards_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int dataType;                   /**< a seqparDataType_t */
  int64_t outer;                  /**< at least 0; for example the batch, or batch x heads if heads precede tokens */
  int64_t tokens;                 /**< of every member; not read if tokensOfMembers is given */
  int64_t inner;                  /**< elements of a token, at least 0 */
  const int64_t* tokensOfMembers; /**< [members]: of each, 0 or more. Read during the call. NULL: `tokens` each */
  const int* group;               /**< [groupSize]: the members' ranks in comm, each once, in the order of their shards.
                                       Read during the call. NULL: all ranks in order */
  int groupSize;                  /**< 0 without a group */
  int ctas; /**< on a GPU: maximum number of CTAs of a transfer through peers' memory, at least 0. Few CTAs leave SMs to
                 computation that runs next to the transfer. 0: as many as the communicator allows
                 (seqparConfig_t::ctas) */
} seqparShards_t;

#define SEQPAR_SHARDS_INITIALIZER                                                                                \
  {                                                                                                              \
    sizeof(seqparShards_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparFloat32, 1, 0, 1, (const int64_t*)0, \
        (const int*)0, 0, 0                                                                                      \
  }

/**
 * All-gather: every member's shard into every member's `whole`; collective over the members. With outer = 1, `shard`
 * may be its final address inside `whole`. Errors: as seqparSequenceToHeads().
 */
SEQPAR_API seqparResult_t seqparAllGather(const void* shard, void* whole, const seqparShards_t* shards,
                                          seqparComm_t comm, void* stream);

/**
 * Reduce-scatter: every member receives its shard of the sum of all members' `whole`; collective over the members; the
 * adjoint of seqparAllGather(). With outer = 1, `shard` may be its final address inside `whole`. Errors: as
 * seqparHeadsToSequence().
 */
SEQPAR_API seqparResult_t seqparReduceScatter(const void* whole, void* shard, const seqparShards_t* shards,
                                              seqparComm_t comm, void* stream);

/**
 * Reduce-scatter of partial softmax attention; collective over the members. Each member has computed attention of all
 * tokens to its part of the keys; every member receives its tokens' attention to all keys:
 *
 *     lse' = log sum_m exp(lse_m)          out' = sum_m exp(lse_m - lse') out_m
 *
 *   out        [outer][tokens of all][heads][inner / heads] of dataType; inner is a multiple of heads
 *   lse        [outer][heads][tokens of all] fp32: natural logarithms of the sums of exponentials. -inf: this member
 *              has no key for the row; its `out` for this row is not read
 *   outShard   [outer][tokens of the member][heads][inner / heads] of dataType, out
 *   lseShard   [outer][heads][tokens of the member] fp32, out
 *
 * Rows without a key on any member become 0 with lse -inf. No overlap is allowed. Errors: as seqparReduceScatter();
 * InvalidArgument (heads below 1 or not a divisor of inner).
 */
SEQPAR_API seqparResult_t seqparReduceScatterLse(const void* out, const float* lse, void* outShard, float* lseShard,
                                                 int64_t heads, const seqparShards_t* shards, seqparComm_t comm,
                                                 void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Gather of ranges
 *
 * Every rank receives the ranges of tokens that it needs of a sharded array instead of the whole array, in an order of
 * its choice: the keys that a mask or a window shows to its queries, in the order of their positions. The group cast of
 * MagiAttention (arXiv 2505.13211, section 4) sends the same. A plan contains the routes and can be used repeatedly.
 *
 *     2 ranks of 4 tokens:   0 1 2 3 | 4 5 6 7        rank 0 needs {2, 2}, {4, 3}: 2 3 4 5 6
 *                                                     rank 1 needs {6, 2}, {0, 1}: 6 7 0
 * ---------------------------------------------------------------------------------------------------------------------
 */

typedef struct seqparRangesPlan* seqparRangesPlan_t; /**< ranges of a sharded array on one communicator */

/** Consecutive tokens of the whole array, which contains the shards in rank order. */
typedef struct {
  int64_t first; /**< at least 0 */
  int64_t count; /**< at least 0; first + count is at most the number of all tokens */
} seqparRange_t;

/**
 * Creates a plan for arrays with the shape `shards` on all ranks of `comm`; `shards->group` is NULL.
 *
 *   rangesOfRanks   [ranks]: the number of ranges of each rank, 0 or more
 *   ranges          [sum of rangesOfRanks]: the ranges of rank 0, then those of rank 1, and so on. No two ranges of a
 *                   rank have a common token; different ranks' may. NULL if there is none
 *
 * Collective over `comm`, with equal arguments; sends nothing, except the comparison of arguments if
 * seqparConfig_t::checkArguments is set. The arrays are not needed after the call.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a group, sizes out of range or overflowing, ranges out of range or with
 * a common token), SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparRangesPlanCreate(seqparRangesPlan_t* plan, const seqparShards_t* shards,
                                                 const int64_t* rangesOfRanks, const seqparRange_t* ranges,
                                                 seqparComm_t comm);

/** Frees a plan; enqueued work continues. NULL has no effect. Errors: InvalidArgument (no plan). */
SEQPAR_API seqparResult_t seqparRangesPlanDestroy(seqparRangesPlan_t plan);

/**
 * Gathers the ranges; collective over the plan's communicator, which must still exist.
 *
 *   shard   [outer][tokens of the rank][inner] of dataType
 *   part    [outer][tokens of the rank's ranges][inner] of dataType, out: the ranges in their given order
 *
 * No overlap is allowed. A buffer without elements may be NULL. Errors: as seqparRedistribute(); on a GPU during stream
 * capture as seqparHeadsToSequence().
 */
SEQPAR_API seqparResult_t seqparGatherRanges(seqparRangesPlan_t plan, const void* shard, void* part, void* stream);

/**
 * The adjoint: adds all copies of each token; collective as seqparGatherRanges().
 *
 *   part    as above: terms of the sums
 *   shard   as above, out: the sums, in rank order. Tokens that are in no range of any rank keep their contents
 *
 * Errors: as seqparGatherRanges().
 */
SEQPAR_API seqparResult_t seqparScatterRanges(seqparRangesPlan_t plan, const void* part, void* shard, void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Halos
 *
 * A halo is the tokens next to a shard, for short convolutions, token shifts and sliding windows, from as many
 * neighbors as necessary: shards may be shorter than the halo, or empty. Halos ignore packed sequences: a halo does not
 * stop at the start of a sequence.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** A halo. Start from SEQPAR_HALO_INITIALIZER. All members pass the same values. */
typedef struct {
  size_t size;      /**< sizeof(seqparHalo_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t left;     /**< tokens before the shard, at least 0 */
  int64_t right;    /**< tokens after the shard, at least 0 */
  int periodic;     /**< not 0: the first token follows the last one. 0: the halo beyond the ends is zeros */
} seqparHalo_t;

#define SEQPAR_HALO_INITIALIZER \
  { sizeof(seqparHalo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0 }

/**
 * Fetches the halos of every member's shard; collective over the members.
 *
 *   shard       [outer][tokens of the member][inner] of dataType
 *   leftHalo    [outer][left][inner], out: the tokens before the shard. NULL with left = 0
 *   rightHalo   [outer][right][inner], out: the tokens after the shard. NULL with right = 0
 *
 * Without `periodic` the first member's leftHalo and the last member's rightHalo are zeros. Errors: as
 * seqparSequenceToHeads().
 */
SEQPAR_API seqparResult_t seqparHaloExchange(const void* shard, void* leftHalo, void* rightHalo,
                                             const seqparHalo_t* halo, const seqparShards_t* shards, seqparComm_t comm,
                                             void* stream);

/**
 * The adjoint: adds the gradients of all halos to the gradients of the copied tokens; collective over the members.
 *
 *   leftHalo, rightHalo   as above: gradients of the halos. Gradients of zero halos are not read
 *   shard                 [outer][tokens of the member][inner], in and out: gradient of the tokens; halos are added
 *
 * The terms of a token are the value in `shard`, then the members' terms in member order, rounded once. If a member has
 * several copies of a token (periodic halos longer than the sequence), its second and later copies are added and
 * rounded afterwards. Errors: as seqparHeadsToSequence().
 */
SEQPAR_API seqparResult_t seqparHaloAdjoint(const void* leftHalo, const void* rightHalo, void* shard,
                                            const seqparHalo_t* halo, const seqparShards_t* shards, seqparComm_t comm,
                                            void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_EXCHANGE_H_ */
