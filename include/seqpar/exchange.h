/*
 * seqpar/exchange.h - exchanges of tokens and heads between the ranks that share a sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too. For every function of this page: buffers are aligned to their elements;
 * inputs must stay unchanged, and outputs unread, until the work is done on `stream`; no output may overlap an input or
 * another output, except where it says so; sums are in fp32 and in the order of the members, and rounded once, so that
 * results depend neither on timing nor on the transport.
 */
#ifndef SEQPAR_EXCHANGE_H_
#define SEQPAR_EXCHANGE_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Between shards of the sequence and shards of the heads
 *
 * Ulysses sequence parallelism (DeepSpeed Ulysses, arXiv 2309.14509, section 3): before attention, an all-to-all brings
 * every member all tokens of some of the heads; after it, another brings back all heads of its tokens. The
 * transposition is done on the way: nothing is packed before or unpacked after.
 *
 * Two row-major arrays of dataType:
 *
 *     sequence   [batch][tokens of the member][heads][headDim]
 *     head       [batch][tokens of all members][heads of the member][headDim]
 *
 * Which heads a member has follows from the query heads: they are dealt out in consecutive runs, and where they do not
 * divide, the first members get one more. Keys and values (heads < queryHeads) go where the queries are that use them:
 * with fewer heads than members several members have the same head, and with uneven runs neighbors may share one. With
 * fewer query heads than members some have none.
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * The shape of a head exchange. Start from SEQPAR_HEAD_SHARDS_INITIALIZER.
 * All members give the same values.
 */
typedef struct {
  size_t size;                    /**< sizeof(seqparHeadShards_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int dataType;                   /**< a seqparDataType_t */
  int64_t batch;                  /**< sequences of equal length, at least 0 */
  int64_t heads;                  /**< of the arrays, at least 1 */
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
 * Stores which heads member `member` of `members` has in head arrays: `count` heads from `first` on; both are 0 for a
 * member without heads. queryHeads as in seqparHeadShards_t. Needs no communicator. Errors: InvalidArgument (NULL,
 * numbers out of range).
 */
SEQPAR_API seqparResult_t seqparHeadsOfMember(int64_t heads, int64_t queryHeads, int members, int member,
                                              int64_t* first, int64_t* count);

/**
 * From `sequence` to `head`; collective over the members. A head that several members have is copied to each. A member
 * without heads has no `head`: it gives NULL, or an address outside `sequence`. Errors: InvalidArgument (NULL, a wrong
 * magic, sizes out of range or overflowing, a group without this rank, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparSequenceToHeads(const void* sequence, void* head, const seqparHeadShards_t* shards,
                                                seqparComm_t comm, void* stream);

/**
 * From `head` to `sequence`; collective over the members. What several members have for one head is added: this is the
 * adjoint of seqparSequenceToHeads(), as gradients of keys and values need it, and its inverse where every head has one
 * owner. Every communicator can do sums. Errors: as seqparSequenceToHeads(); InvalidUsage (on a GPU, while a stream is
 * captured: more pieces than fit a kernel's parameters; the text has both numbers).
 */
SEQPAR_API seqparResult_t seqparHeadsToSequence(const void* head, void* sequence, const seqparHeadShards_t* shards,
                                                seqparComm_t comm, void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Gathering and scattering along the sequence
 *
 * A row-major array [outer][tokens][inner] of dataType whose tokens lie on the members of a group, some on each: a
 * shard is [outer][tokens of the member][inner], and the whole array has the shards in the order of the members. For an
 * array of rank r's `count` numbers without any structure: outer = 1, tokens = 1, inner = count.
 * -------------------------------------------------------------------------------------------------------------------
 */

/** The shape of a sharded array. Start from SEQPAR_SHARDS_INITIALIZER. All members give the same values. */
typedef struct {
  size_t size;                    /**< sizeof(seqparShards_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int dataType;                   /**< a seqparDataType_t */
  int64_t outer;                  /**< at least 0; e.g. the batch, or batch x heads where heads come before tokens */
  int64_t tokens;                 /**< of every member; not read if tokensOfMembers is given */
  int64_t inner;                  /**< elements of a token, at least 0 */
  const int64_t* tokensOfMembers; /**< [members]: of each, 0 or more. Read during the call. NULL: `tokens` each */
  const int* group;               /**< [groupSize]: the members' ranks in comm, each once, in the order of their shards.
                                       Read during the call. NULL: all ranks in order */
  int groupSize;                  /**< 0 without a group */
} seqparShards_t;

#define SEQPAR_SHARDS_INITIALIZER                                                                                \
  {                                                                                                              \
    sizeof(seqparShards_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparFloat32, 1, 0, 1, (const int64_t*)0, \
        (const int*)0, 0                                                                                         \
  }

/**
 * All-gather: every member's shard into every member's `whole`; collective over the members. With outer = 1, `shard`
 * may be its own place inside `whole`. Errors: as seqparSequenceToHeads().
 */
SEQPAR_API seqparResult_t seqparAllGather(const void* shard, void* whole, const seqparShards_t* shards,
                                          seqparComm_t comm, void* stream);

/**
 * Reduce-scatter: every member's shard of the sum of all members' `whole`; collective over the members, and the adjoint
 * of seqparAllGather(). With outer = 1, `shard` may be its own place inside `whole`. Errors: as
 * seqparHeadsToSequence().
 */
SEQPAR_API seqparResult_t seqparReduceScatter(const void* whole, void* shard, const seqparShards_t* shards,
                                              seqparComm_t comm, void* stream);

/**
 * Reduce-scatter of partial softmax attention; collective over the members. Each member has attended, for all tokens,
 * to its part of the keys; every member gets its tokens' attention to all keys:
 *
 *     lse' = log sum_m exp(lse_m)          out' = sum_m exp(lse_m - lse') out_m
 *
 *   out        [outer][tokens of all][heads][inner / heads] of dataType; inner is a multiple of heads
 *   lse        [outer][heads][tokens of all] fp32: natural logarithms of the sums of exponentials. -inf: this member
 *              has no key for the row, and what `out` holds for it is not looked at
 *   outShard   [outer][tokens of the member][heads][inner / heads] of dataType, out
 *   lseShard   [outer][heads][tokens of the member] fp32, out
 *
 * Rows for which no member has a key become 0 with lse -inf. Nothing may overlap. Errors: as seqparReduceScatter();
 * InvalidArgument (heads below 1 or not a divisor of inner).
 */
SEQPAR_API seqparResult_t seqparReduceScatterLse(const void* out, const float* lse, void* outShard, float* lseShard,
                                                 int64_t heads, const seqparShards_t* shards, seqparComm_t comm,
                                                 void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Halos
 *
 * The tokens beside a shard, as short convolutions, token shifts and sliding windows need them. They come from as many
 * neighbors as it takes: shards may be shorter than the halo, or empty. Packed sequences are the caller's business: a
 * halo does not stop where a sequence begins.
 * -------------------------------------------------------------------------------------------------------------------
 */

/** A halo. Start from SEQPAR_HALO_INITIALIZER. All members give the same values. */
typedef struct {
  size_t size;      /**< sizeof(seqparHalo_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t left;     /**< tokens before the shard, at least 0 */
  int64_t right;    /**< tokens behind it, at least 0 */
  int periodic;     /**< not 0: the last token of all is followed by the first. 0: beyond the ends there are zeros */
} seqparHalo_t;

#define SEQPAR_HALO_INITIALIZER \
  { sizeof(seqparHalo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0 }

/**
 * Fetches the halos of every member's shard; collective over the members.
 *
 *   shard       [outer][tokens of the member][inner] of dataType
 *   leftHalo    [outer][left][inner], out: the tokens before the shard. NULL with left = 0
 *   rightHalo   [outer][right][inner], out: the tokens behind it. NULL with right = 0
 *
 * Without `periodic` the first member's leftHalo and the last one's rightHalo are zeros. Errors: as
 * seqparSequenceToHeads().
 */
SEQPAR_API seqparResult_t seqparHaloExchange(const void* shard, void* leftHalo, void* rightHalo,
                                             const seqparHalo_t* halo, const seqparShards_t* shards, seqparComm_t comm,
                                             void* stream);

/**
 * The adjoint: adds the gradients of all halos to the gradients of the tokens that they are copies of; collective over
 * the members.
 *
 *   leftHalo, rightHalo   as above: gradients with respect to the halos. Those of zeros are not looked at
 *   shard                 [outer][tokens of the member][inner], in and out: gradient of the tokens, added to
 *
 * The terms of a token are what stands in `shard`, then the members' in their order, rounded once; where a member has
 * several copies of a token (periodic halos that reach round), its second and later ones are added and rounded after
 * that. Errors: as seqparHeadsToSequence().
 */
SEQPAR_API seqparResult_t seqparHaloAdjoint(const void* leftHalo, const void* rightHalo, void* shard,
                                            const seqparHalo_t* halo, const seqparShards_t* shards, seqparComm_t comm,
                                            void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_EXCHANGE_H_ */
