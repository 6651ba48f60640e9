/*
 * seqpar/attn_plan.h - attention over a sequence that is sharded across ranks: one plan object for softmax attention
 * and for linear attention, forward and backward. Library: libseqpar_attn, on top of libseqpar.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too, with one difference: the text of an error is seqparAttnGetLastError()'s. A
 * plan is used like this:
 *
 *     seqparAttnPlanCreate(&plan, &desc, comm);       checks everything, chooses the algorithm
 *     seqparAttnPlanPrepare(plan, NULL, 0);           builds kernels, takes all memory
 *     for each layer:
 *       seqparAttnForward(plan, &forward, stream);
 *       seqparAttnBackward(plan, &backward, stream);
 *     seqparAttnPlanDestroy(plan);
 *
 * Between Prepare and Destroy nothing is allocated (small objects of host queues aside) and nothing synchronizes;
 * on a GPU the calls may be captured into CUDA graphs. What backward needs beside the inputs is what forward wrote into
 * the caller's buffers: (out, lse) of softmax attention, `saved` of linear attention. The forward pass is never run
 * again, so saving these is the whole checkpoint (DistFlashAttn, arXiv 2310.03294, section 3.3). A plan keeps nothing
 * from one call for another: any number of forward passes may come before their backward passes, in any order.
 */
#ifndef SEQPAR_ATTN_PLAN_H_
#define SEQPAR_ATTN_PLAN_H_

#include "seqpar/layout.h"
#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparAttnPlan* seqparAttnPlan_t; /**< one operator on one communicator, with its workspace */

/** What a token does with the tokens before it. */
typedef enum {
  seqparAttnSoftmax = 0, /**< softmax(scale q k^T + mask) v */
  seqparAttnGla = 1,     /**< S_t = diag(exp(g_t)) S_(t-1) + k_t v_t^T, o_t = scale q_t^T S_t; g [batch][tokens][heads]
                              [headDim]. Gated linear attention (arXiv 2312.06635) */
  seqparAttnScalar = 2,  /**< the same with one decay a token and head, g [batch][tokens][heads]: Mamba-2's SSD form
                              (arXiv 2405.21060), simple GLA */
  seqparAttnFixed = 3,   /**< the same with one decay a head, g [heads]: RetNet (arXiv 2307.08621), Lightning */
  seqparAttnSum = 4      /**< the same without decay: linear attention (arXiv 2006.16236) */
} seqparAttnFamily_t;

/** How the ranks work together. The names are the papers'; docs/attention.md has a table of what each can do. */
typedef enum {
  seqparAttnAuto = 0,         /**< chosen by the cost model; seqparAttnPlanExplain() tells which, and why */
  seqparAttnLocal = 1,        /**< no exchange: every rank attends to its own tokens only. The bound of the others */
  seqparAttnRing = 2,         /**< keys and values go round (Ring Attention, arXiv 2310.01889) */
  seqparAttnRingPassQ = 3,    /**< queries and partial outputs go round (arXiv 2411.01783, "pass-Q") */
  seqparAttnZigzag = 4,       /**< RING on the zigzag layout, which balances causal masks */
  seqparAttnStriped = 5,      /**< RING on the striped layout (Striped Attention, arXiv 2311.09431) */
  seqparAttnBurst = 6,        /**< RING forward; backward moves queries and gradients (arXiv 2403.09347) */
  seqparAttnDoubleRing = 7,   /**< RING by windows (LoongTrain, arXiv 2406.18485) */
  seqparAttnAllGatherKv = 8,  /**< all keys and values are gathered, some heads at a time (Llama 3, arXiv 2407.21783) */
  seqparAttnUlysses = 9,      /**< all-to-all to heads and back (DeepSpeed Ulysses, arXiv 2309.14509) */
  seqparAttnUsp = 10,         /**< ULYSSES in groups, RING between them (arXiv 2405.07719) */
  seqparAttnMesh = 11,        /**< tiles of Q groups and KV groups (Mesh-Attention, arXiv 2512.20968) */
  seqparAttnAttention2d = 12, /**< the square mesh by gathers (Attention2D) */
  seqparAttnDistAttn = 13,    /**< idle ranks help in causal rings (LightSeq / DistFlashAttn, arXiv 2310.03294) */
  seqparAttnStarTrail = 14,   /**< teams gather, concentric rings between them (arXiv 2407.00611) */
  seqparAttnRingSelfAttention = 15, /**< keys go round, then values (arXiv 2105.13120) */
  seqparAttnMegatronSp = 16,        /**< tokens are gathered and heads are shared out (Megatron-LM, arXiv 2205.05198) */
  seqparAttnZeco = 17,              /**< linear: one All-Scan behind the local work (ZeCO, arXiv 2507.01004) */
  seqparAttnLasp1 = 18,             /**< linear: states go from rank to rank, unpipelined (LASP, arXiv 2404.02882) */
  seqparAttnLasp2 = 19              /**< linear: states are gathered (LASP-2, arXiv 2502.07563) */
} seqparAttnAlgorithm_t;

#define SEQPAR_ATTN_ALGORITHMS 20 /**< one more than the largest number of an algorithm */

/** "zigzag" for seqparAttnZigzag; NULL for a number that is no algorithm. Static memory. */
SEQPAR_API const char* seqparAttnAlgorithmName(int algorithm);

/** Which keys a query sees, before windows and packing. */
typedef enum {
  seqparAttnFull = 0,  /**< all */
  seqparAttnCausal = 1 /**< those of its own token and of the tokens before it */
} seqparAttnMask_t;

/** No limit to a window's side. */
#define SEQPAR_ATTN_NO_WINDOW (-1)

/** A tensor of rows [batch][tokens][heads][dim], the last dimension dense. Strides are in elements; all three 0: dense.
    Each is at least dim, and in outputs at least what the dimensions of smaller strides reach: no two rows overlap. */
typedef struct {
  void* data;          /**< the first element; NULL: no such tensor */
  int64_t batchStride; /**< from a sequence to the next */
  int64_t tokenStride; /**< from a token to the next */
  int64_t headStride;  /**< from a head to the next */
} seqparAttnTensor_t;

/**
 * One rectangle of scores, for block kernels of the caller. Query i (0 <= i < rows) sees key j (0 <= j < columns) if
 * i + lower <= j <= i + upper. Bounds of INT64_MIN and INT64_MAX do not bound.
 */
typedef struct {
  size_t size;                /**< sizeof(seqparAttnTile_t) */
  unsigned magic;             /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;           /**< SEQPAR_VERSION_CODE */
  int64_t batch;              /**< sequences */
  int64_t rows;               /**< queries of each */
  int64_t columns;            /**< keys of each */
  int64_t heads;              /**< of queries and outputs */
  int64_t kvHeads;            /**< of keys and values, a divisor of heads: head h uses h / (heads / kvHeads) */
  int64_t headDim;            /**< length of a query and of a key */
  int64_t valueDim;           /**< length of a value */
  int64_t lower;              /**< the band's lower bound, as above */
  int64_t upper;              /**< its upper bound */
  int dataType;               /**< a seqparDataType_t: of q, k, v, out, dOut */
  float scale;                /**< multiplies the scores */
  float softcap;              /**< 0: none */
  seqparAttnTensor_t q, k, v; /**< in */
  seqparAttnTensor_t out;  /**< forward: out, of dataType, normalized over the rectangle; backward: in, the final one */
  float* lse;              /**< [batch][heads][rows], strides below: forward: out, of the rectangle, -inf for a row
                                that sees nothing; backward: in, over all keys */
  int64_t lseBatchStride;  /**< of `lse`, in elements, from a sequence to the next */
  int64_t lseHeadStride;   /**< from a head to the next */
  seqparAttnTensor_t dOut; /**< backward: in */
  seqparAttnTensor_t dq, dk, dv; /**< backward: out, of dataType: the rectangle's share, not accumulated */
} seqparAttnTile_t;

/** A block kernel of the caller, such as FlashAttention-3. Both functions enqueue on `stream` and return 0 or an error.
 */
typedef struct {
  size_t size;                                                             /**< sizeof(seqparAttnKernel_t) */
  unsigned magic;                                                          /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;                                                        /**< SEQPAR_VERSION_CODE */
  int (*forward)(void* self, const seqparAttnTile_t* tile, void* stream);  /**< writes out and lse */
  int (*backward)(void* self, const seqparAttnTile_t* tile, void* stream); /**< writes dq, dk and dv */
  void* self;                                                              /**< given to both */
} seqparAttnKernel_t;

#define SEQPAR_ATTN_KERNEL_INITIALIZER \
  { sizeof(seqparAttnKernel_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, NULL }

/**
 * What a plan computes. Start from SEQPAR_ATTN_DESC_INITIALIZER. All ranks give the same values, except for `kernel`,
 * which is each rank's own. Pointers are read during seqparAttnPlanCreate() only, `kernel->self` excepted.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparAttnDesc_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int family;       /**< a seqparAttnFamily_t */
  int algorithm;    /**< a seqparAttnAlgorithm_t */

  int64_t batch;  /**< sequences of equal length, at least 1; 1 with packed sequences */
  int64_t tokens; /**< of the whole sequence, over all ranks, 0 or more. Not read with `layout` or `tokensOfRanks` */
  const seqparLayout_t* layout; /**< which rank holds which tokens; NULL: the algorithm's own, which
                                     seqparAttnPlanLayout() tells. Linear attention: contiguous only */
  const int64_t* tokensOfRanks; /**< [ranks]: contiguous shards of these lengths, in place of a layout; NULL: none */
  int64_t kvTokens; /**< cross-attention: tokens of keys and values; 0: the queries are of the same tokens. Masks and
                         windows are aligned at the ends: query i is taken to stand at key i + kvTokens - tokens */
  const seqparLayout_t* kvLayout; /**< cross-attention: their layout; NULL: as `layout` is for kvTokens */
  int64_t sequences;              /**< packed sequences: how many; 0: the tokens are one sequence */
  const int64_t* cuSeqlens; /**< [sequences + 1]: where each begins in the whole, ascending from 0 to the number of
                                 tokens. Independent of the layout's own packing. Tokens never see other sequences */

  int64_t heads;    /**< of queries and outputs (softmax), of values and outputs (linear); at least 1 */
  int64_t kvHeads;  /**< softmax: heads of keys and values; linear: heads of queries and keys. A divisor of heads; 0: as
                         many */
  int64_t headDim;  /**< length of a query and of a key, at least 1. Linear, on GPUs: a multiple of 16, at most 256 */
  int64_t valueDim; /**< length of a value; 0: headDim. Linear, on GPUs: a multiple of 16 */
  int dataType;     /**< a seqparDataType_t: of q, k, v, out and their gradients */
  int gateType;     /**< a seqparDataType_t: linear: of g and its gradient: fp32 or bf16 */
  int wireType;     /**< a seqparDataType_t: in which partial results (sums, outputs, states) travel; fp32 by default */
  float scale;      /**< multiplies the scores; 0: 1 / sqrt(headDim) */

  int mask;            /**< softmax: a seqparAttnMask_t. Linear attention is causal always */
  int64_t windowLeft;  /**< softmax: the most tokens before its own that a token sees; SEQPAR_ATTN_NO_WINDOW: all */
  int64_t windowRight; /**< behind it; SEQPAR_ATTN_NO_WINDOW: all, or none with seqparAttnCausal */
  float softcap;       /**< softmax: scores become softcap * tanh(score / softcap); 0: none */
  int sinks;           /**< softmax: 1: a learned number a head joins the softmax's denominator (gpt-oss) */

  int inner;          /**< USP: ranks of a Ulysses group; DOUBLE_RING: of a window; STARTRAIL: of a team; MESH,
                           ATTENTION2D: a, ranks of a Q group. A divisor of the ranks; 0: chosen */
  int ulyssesOutside; /**< USP: 0: a Ulysses group's ranks are consecutive; 1: a ring's are */
  int training;       /**< 1 (default): backward may be called; 0: forward only, with less workspace */
  int deterministic;  /**< 1: results are bitwise reproducible on GPUs too, backward included, at a cost; 0 (default):
                           backward of GPU block kernels may add in any order. Hosts always are */
  const seqparAttnKernel_t* kernel; /**< softmax: block kernel in place of the library's; NULL: the library's */
  int reserve; /**< 1: forward leaves in the caller's `reserve`, for backward to read, what it would exchange or compute
                    again: seqparAttnPlanReserveSize() bytes from each forward pass to its backward pass; 0 (default):
                    (out, lse), or `saved`, is all that stays. Softmax: what has been exchanged, by ULYSSES,
                    MEGATRON_SP, USP and ALLGATHER_KV. Linear, on GPUs: states within the rank, by every algorithm; of
                    packed sequences with `initial` or dInitial they are computed again. All others: 0 bytes */
} seqparAttnDesc_t;

#define SEQPAR_ATTN_DESC_INITIALIZER                                                                                   \
  {                                                                                                                    \
    sizeof(seqparAttnDesc_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparAttnSoftmax, seqparAttnAuto, 1, 0, NULL, \
        NULL, 0, NULL, 0, NULL, 1, 0, 0, 0, seqparFloat32, seqparFloat32, seqparFloat32, 0.0f, seqparAttnFull,         \
        SEQPAR_ATTN_NO_WINDOW, SEQPAR_ATTN_NO_WINDOW, 0.0f, 0, 0, 0, 1, 0, NULL, 0                                     \
  }

/**
 * Collective over `comm`: makes a plan. With comm NULL the caller has the whole sequence, on host memory. Sends nothing
 * but what seqparRingCreate(), seqparCommSplit() and seqparConfig_t::checkArguments send. The communicator must outlive
 * the plan, and carries the calls of a plan in the order of their calls on every rank.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a value out of range, a packing that does not ascend or end at the
 * number of tokens, head counts that do not divide), InvalidUsage (a feature that the algorithm lacks: the text names
 * the algorithms that have it; a head dimension or architecture without kernels; a library that cannot be opened;
 * descriptions that differ between ranks that compare them),
 * SystemError (no memory), RemoteError.
 */
SEQPAR_API seqparResult_t seqparAttnPlanCreate(seqparAttnPlan_t* plan, const seqparAttnDesc_t* desc, seqparComm_t comm);

/** Frees a plan, when its enqueued work is done. Collective as Create is. NULL is allowed. Errors: InvalidArgument. */
SEQPAR_API seqparResult_t seqparAttnPlanDestroy(seqparAttnPlan_t plan);

/** Stores the bytes that Prepare needs on this rank, of the kind of memory that the plan works on. Errors:
 * InvalidArgument. */
SEQPAR_API seqparResult_t seqparAttnPlanWorkspaceSize(seqparAttnPlan_t plan, size_t* bytes);

/**
 * Stores the bytes of `reserve` that a forward pass and its backward pass take on this rank: 0 without the desc's
 * `reserve`, with training = 0, and by algorithms that leave nothing. Errors: InvalidArgument.
 */
SEQPAR_API seqparResult_t seqparAttnPlanReserveSize(seqparAttnPlan_t plan, size_t* bytes);

/**
 * Collective: builds kernels and takes all memory. `workspace`, at least `bytes` long and aligned to 256, is the
 * caller's and must outlive the plan; NULL with 0: the plan takes its own. One call of a plan uses its workspace at a
 * time: calls on several streams are ordered by the caller. ZECO between GPUs that reach each other's memory takes two
 * states of all heads beside it, four with `training`, as seqparScanDeviceCreate() does. On GPUs it returns when all
 * ranks have prepared theirs (seqparCommBarrier()). Errors: InvalidArgument (no plan, too few bytes, misaligned),
 * InvalidUsage (prepared before), SystemError (no memory), UnhandledCudaError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparAttnPlanPrepare(seqparAttnPlan_t plan, void* workspace, size_t bytes);

/**
 * Stores the layout of the plan's tokens, `cuSeqlens` of it NULL, and the number of this rank's tokens; either may be
 * NULL. With tokensOfRanks the layout has ranks = 0. Errors: InvalidArgument.
 */
SEQPAR_API seqparResult_t seqparAttnPlanLayout(seqparAttnPlan_t plan, seqparLayout_t* layout, int64_t* localTokens);

/**
 * The choice as JSON: algorithm, shape, layout, block kernel, workspace, bytes sent by a rank, modeled times in us,
 * and for every other algorithm its modeled time or why it cannot do this.
 *
 *   text   out, ends with a zero byte; NULL: only the length
 *   bytes  in: room in `text`; out: bytes of the text, the zero byte included
 *
 * Errors: InvalidArgument (no plan, NULL, room that is too short).
 */
SEQPAR_API seqparResult_t seqparAttnPlanExplain(seqparAttnPlan_t plan, char* text, size_t* bytes);

/** Arguments of a forward pass. Start from SEQPAR_ATTN_FORWARD_INITIALIZER. "heads" and "kvHeads" are the desc's. */
typedef struct {
  size_t size;             /**< sizeof(seqparAttnForwardArgs_t) */
  unsigned magic;          /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;        /**< SEQPAR_VERSION_CODE */
  seqparAttnTensor_t q;    /**< [batch][tokens][heads; linear: kvHeads][headDim] */
  seqparAttnTensor_t k;    /**< [batch][kv tokens][kvHeads][headDim] */
  seqparAttnTensor_t v;    /**< [batch][kv tokens][kvHeads; linear: heads][valueDim] */
  seqparAttnTensor_t out;  /**< [batch][tokens][heads][valueDim], out. A row that sees nothing is 0 */
  float* lse;              /**< softmax: [batch][heads][tokens] dense, out: natural logarithm of the row's sum of
                                exponentials, sinks included; -inf for a row that sees neither a key
                                nor a sink. NULL with training = 0 */
  const float* sinks;      /**< softmax with `sinks`: [heads] */
  seqparAttnTensor_t gate; /**< linear: natural logarithms of the decays, as the family says; at most 0. -inf forgets */
  const float* initial; /**< linear: [batch][heads][headDim][valueDim], the state before the first token of all. Read on
                             rank 0 only; with packed sequences [sequences][heads][...], on every rank. NULL: zeros */
  float* saved;         /**< linear: [batch][heads][headDim][valueDim], out: the state before this rank's first token,
                             for backward. NULL with training = 0 */
  float* final;         /**< linear: [batch][heads][headDim][valueDim], out: the state after this rank's last token.
                             NULL: not wanted */
  void* reserve;        /**< seqparAttnPlanReserveSize() bytes, aligned to 16, out: what this pass leaves for
                             its backward pass, in the plan's own form. Not read where that is 0 */
} seqparAttnForwardArgs_t;

#define SEQPAR_ATTN_FORWARD_INITIALIZER                                                                          \
  {                                                                                                              \
    sizeof(seqparAttnForwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, NULL, {NULL, 0, 0, 0}, NULL, NULL, NULL, NULL                    \
  }

/**
 * Forward pass; collective over the plan's communicator. Inputs must stay unchanged, and outputs unread, until the work
 * is done on `stream` (a cudaStream_t on GPUs; a seqparStream_t on hosts, NULL: to completion in the call). No output
 * overlaps an input or another output. Tensors of no tokens may be NULL.
 *
 * Errors: InvalidArgument (no plan, NULL, a wrong magic, strides, alignment to the element (GPUs: to 16 bytes), memory
 * of the wrong kind, overlap), InvalidUsage (not prepared), UnhandledCudaError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparAttnForward(seqparAttnPlan_t plan, const seqparAttnForwardArgs_t* args, void* stream);

/** Arguments of a backward pass. Start from SEQPAR_ATTN_BACKWARD_INITIALIZER. Shapes as in the forward pass. */
typedef struct {
  size_t size;                   /**< sizeof(seqparAttnBackwardArgs_t) */
  unsigned magic;                /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;              /**< SEQPAR_VERSION_CODE */
  seqparAttnTensor_t q, k, v;    /**< as given to the forward pass */
  seqparAttnTensor_t out;        /**< softmax: as the forward pass wrote it. Linear: not read */
  const float* lse;              /**< softmax: as the forward pass wrote it */
  const float* sinks;            /**< softmax with `sinks`: as given to the forward pass */
  seqparAttnTensor_t gate;       /**< linear: as given to the forward pass */
  const float* saved;            /**< linear: as the forward pass wrote it */
  const float* initial;          /**< linear with packed sequences: as given to the forward pass; else not read */
  seqparAttnTensor_t dOut;       /**< gradient of out */
  const float* dFinal;           /**< linear: gradient of the state after the last token of all, [batch][heads]
                                      [headDim][valueDim]; read on the last rank only. NULL: zeros */
  seqparAttnTensor_t dq, dk, dv; /**< out, as q, k, v */
  seqparAttnTensor_t dGate;      /**< linear: out, gradient of the logarithms, as `gate`. data NULL: not wanted */
  float* dSinks;                 /**< softmax with `sinks`: [heads], out: this rank's tokens' share; their sum over the
                                      ranks is the gradient */
  float* dInitial;               /**< linear: out, gradient of `initial`: on rank 0; with packed sequences on every
                                      rank its share. NULL: not wanted */
  const void* reserve;           /**< as the forward pass wrote it */
} seqparAttnBackwardArgs_t;

#define SEQPAR_ATTN_BACKWARD_INITIALIZER                                                                          \
  {                                                                                                               \
    sizeof(seqparAttnBackwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, NULL, {NULL, 0, 0, 0}, NULL, NULL, {NULL, 0, 0, 0}, NULL,         \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, NULL, NULL                      \
  }

/** Backward pass; collective over the plan's communicator. Conditions and errors as for seqparAttnForward(), and
 * InvalidUsage (a plan with training = 0). */
SEQPAR_API seqparResult_t seqparAttnBackward(seqparAttnPlan_t plan, const seqparAttnBackwardArgs_t* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_PLAN_H_ */
