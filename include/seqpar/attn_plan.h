/*
 * seqpar/attn_plan.h - attention over a sequence that is sharded across ranks: one plan object for softmax attention
 * and linear attention, forward and backward. Library: libseqpar_attn, on top of libseqpar.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply, except that seqparAttnGetLastError() of attn.h returns the text of an error. Use:
 *
 *     seqparAttnPlanCreate(&plan, &desc, comm);       checks the description, chooses the algorithm
 *     seqparAttnPlanPrepare(plan, NULL, 0);           builds kernels, allocates all memory
 *     for each layer:
 *       seqparAttnForward(plan, &forward, stream);
 *       seqparAttnBackward(plan, &backward, stream);
 *     seqparAttnPlanDestroy(plan);
 *
 * Between Prepare and Destroy nothing is allocated (except small objects of host queues) and nothing synchronizes; on a
 * GPU the calls can be captured into CUDA graphs. The backward pass needs the inputs and the data that the forward pass
 * wrote into the caller's buffers: (out, lse) of softmax attention, `saved` of linear attention. The forward pass is
 * never repeated, so these buffers are the whole checkpoint (DistFlashAttn, arXiv 2310.03294, section 3.3). A plan
 * keeps no data between calls: any number of forward passes may precede their backward passes, in any order. One
 * thread at a time may call with a plan; a pass while another thread is inside one is refused (InvalidUsage).
 */
#ifndef SEQPAR_ATTN_PLAN_H_
#define SEQPAR_ATTN_PLAN_H_

#include "seqpar/attn_family.h"
#include "seqpar/attn_mask.h"
#include "seqpar/layout.h"
#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparAttnPlan* seqparAttnPlan_t; /**< one operator on one communicator, with its workspace */

/** Distributed algorithm, named after its paper; docs/attention.md lists the features of each. */
typedef enum {
  seqparAttnAuto = 0,         /**< chosen by the cost model; seqparAttnPlanExplain() returns the choice and the
                                   reasons */
  seqparAttnLocal = 1,        /**< no exchange: every rank attends to its own tokens only. Lower bound of the time.
                                   Linear: states start from zeros on each rank, except where `initial` is read: on rank
                                   0, with packed sequences on the rank of a sequence's first token */
  seqparAttnRing = 2,         /**< keys and values rotate (Ring Attention, arXiv 2310.01889) */
  seqparAttnRingPassQ = 3,    /**< queries and partial outputs rotate (arXiv 2411.01783, "pass-Q") */
  seqparAttnZigzag = 4,       /**< RING on the zigzag layout, which balances causal masks */
  seqparAttnStriped = 5,      /**< RING on the striped layout (Striped Attention, arXiv 2311.09431) */
  seqparAttnBurst = 6,        /**< RING forward; backward rotates queries and gradients (arXiv 2403.09347) */
  seqparAttnDoubleRing = 7,   /**< RING over windows (LoongTrain, arXiv 2406.18485) */
  seqparAttnAllGatherKv = 8,  /**< all-gather of keys and values, some heads at a time (Llama 3, arXiv 2407.21783) */
  seqparAttnUlysses = 9,      /**< all-to-all to heads and back (DeepSpeed Ulysses, arXiv 2309.14509) */
  seqparAttnUsp = 10,         /**< ULYSSES in groups, RING between them (arXiv 2405.07719) */
  seqparAttnMesh = 11,        /**< tiles of Q groups and KV groups (Mesh-Attention, arXiv 2512.20968) */
  seqparAttnAttention2d = 12, /**< MESH with gathers, without overlap (Attention2D, arXiv 2503.15758) */
  seqparAttnDistAttn = 13,    /**< idle ranks help in causal rings (LightSeq / DistFlashAttn, arXiv 2310.03294) */
  seqparAttnStarTrail = 14,   /**< teams gather, concentric rings between them (arXiv 2407.00611) */
  seqparAttnRingSelfAttention = 15, /**< keys rotate, then values (arXiv 2105.13120) */
  seqparAttnMegatronSp = 16,        /**< all-gather of tokens, heads distributed over the ranks (Megatron-LM, arXiv
                                         2205.05198) */
  seqparAttnZeco = 17,              /**< linear: one All-Scan, overlapped with the local work (ZeCO, arXiv
                                         2507.01004) */
  seqparAttnLasp1 = 18,             /**< linear: states from rank to rank, unpipelined (LASP, arXiv 2404.02882) */
  seqparAttnLasp2 = 19              /**< linear: all-gather of states (LASP-2, arXiv 2502.07563) */
} seqparAttnAlgorithm_t;

#define SEQPAR_ATTN_ALGORITHMS 20 /**< largest algorithm id + 1 */

/** Name of an algorithm, for example "zigzag" for seqparAttnZigzag; NULL for an unknown id. Static memory. */
SEQPAR_API const char* seqparAttnAlgorithmName(int algorithm);

/**
 * The kernels for softmax attention of bf16 and fp16 tensors on GPUs in this process: "cuDNN 9.19.0", "fp32 band
 * kernels (cuDNN: why it cannot be used)", which are more than ten times slower, or "none (built without CUDA)". Opens
 * libcudnn.so.9 at the first call. seqparAttnPlanExplain() returns the choice of a plan. Never NULL; static memory.
 */
SEQPAR_API const char* seqparAttnGpuKernels(void);

/** Visible keys of a query, before windows and packing. */
typedef enum {
  seqparAttnFull = 0,  /**< all */
  seqparAttnCausal = 1 /**< keys of its own token and of earlier tokens */
} seqparAttnMask_t;

/** No limit on a side of the window. */
#define SEQPAR_ATTN_NO_WINDOW (-1)

/**
 * A tensor of rows [batch][tokens][heads][dim], the last dimension dense. Strides are in elements; all three 0: dense.
 * Each stride is at least dim, and in outputs at least the extent of the dimensions with smaller strides, so that no
 * two rows overlap.
 */
typedef struct {
  void* data;          /**< the first element; NULL: absent */
  int64_t batchStride; /**< from a sequence to the next */
  int64_t tokenStride; /**< from a token to the next */
  int64_t headStride;  /**< from a head to the next */
} seqparAttnTensor_t;

/**
 * One rectangle of scores, for block kernels of the caller. Query i (0 <= i < rows) sees key j (0 <= j < columns) if i
 * + lower <= j <= i + upper. Bounds of INT64_MIN and INT64_MAX are no limits.
 */
typedef struct {
  size_t size;                /**< sizeof(seqparAttnTile_t) */
  unsigned magic;             /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;           /**< SEQPAR_VERSION_CODE */
  int64_t batch;              /**< sequences */
  int64_t rows;               /**< queries per sequence */
  int64_t columns;            /**< keys per sequence */
  int64_t heads;              /**< of queries and outputs */
  int64_t kvHeads;            /**< of keys and values, a divisor of heads: head h uses h / (heads / kvHeads) */
  int64_t headDim;            /**< length of a query and of a key */
  int64_t valueDim;           /**< length of a value */
  int64_t lower;              /**< lower bound of the band */
  int64_t upper;              /**< upper bound of the band */
  int dataType;               /**< a seqparDataType_t: of q, k, v, out, dOut */
  float scale;                /**< multiplies the scores */
  float softcap;              /**< 0: none */
  seqparAttnTensor_t q, k, v; /**< in */
  seqparAttnTensor_t out;     /**< forward: out, of dataType, normalized over the rectangle; backward: in, the final
                                   output */
  float* lse;                 /**< [batch][heads][rows], strides below: forward: out, of the rectangle, -inf for a row
                                   without visible keys; backward: in, over all keys */
  int64_t lseBatchStride;     /**< of `lse`, in elements, from a sequence to the next */
  int64_t lseHeadStride;      /**< from a head to the next */
  seqparAttnTensor_t dOut;    /**< backward: in */
  seqparAttnTensor_t dq, dk, dv; /**< backward: out, of dataType: the rectangle's contribution, not accumulated */
} seqparAttnTile_t;

/**
 * A block kernel of the caller, for example FlashAttention-3. Both functions enqueue on `stream` and return 0 or an
 * error.
 *
 * On hosts `stream` is a seqparStream_t, and the kernel enqueues its work by seqparStreamLaunch(): the tensors contain
 * their values only when that work runs, and the tile must be copied, as it is valid during the call only. With
 * `stream` NULL the kernel completes its work in the call. Work that fails later, on the stream, calls
 * seqparStreamFail().
 *
 * A failure ends the communicator of the plan on all ranks before invalid data is sent. An error that a function
 * returns is seqparSystemError of seqparAttnForward() or seqparAttnBackward() on this rank, an error of
 * seqparStreamFail() is returned by seqparStreamSynchronize(); other ranks return seqparRemoteError. Later calls of the
 * plan return the error of the lost communicator. A plan without a communicator stays usable.
 */
typedef struct {
  size_t size;                                                             /**< sizeof(seqparAttnKernel_t) */
  unsigned magic;                                                          /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;                                                        /**< SEQPAR_VERSION_CODE */
  int (*forward)(void* self, const seqparAttnTile_t* tile, void* stream);  /**< writes out and lse */
  int (*backward)(void* self, const seqparAttnTile_t* tile, void* stream); /**< writes dq, dk and dv */
  void* self;                                                              /**< passed to both functions */
} seqparAttnKernel_t;

#define SEQPAR_ATTN_KERNEL_INITIALIZER \
  { sizeof(seqparAttnKernel_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, NULL }

/**
 * Description of a plan. Start from SEQPAR_ATTN_DESC_INITIALIZER. All ranks pass the same values, except `kernel`.
 * Pointers are read during seqparAttnPlanCreate() only, except `kernel->self`.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparAttnDesc_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int family;       /**< a seqparAttnFamily_t */
  int algorithm;    /**< a seqparAttnAlgorithm_t */

  int64_t batch;                /**< sequences of equal length, at least 1; 1 with packed sequences */
  int64_t tokens;               /**< tokens of the whole sequence, over all ranks, 0 or more. Not read with `layout` or
                                     `tokensOfRanks` */
  const seqparLayout_t* layout; /**< layout of the tokens; NULL: the algorithm's default, which
                                     seqparAttnPlanLayout() returns. Linear attention: contiguous only */
  const int64_t* tokensOfRanks; /**< [ranks]: contiguous shards of these lengths; NULL: none. Not with `layout` */
  int64_t kvTokens; /**< cross-attention: tokens of keys and values; 0: self-attention. Masks and windows are aligned
                         at the ends: query i has the position of key i + kvTokens - tokens. Softmax only, and not with
                         packed sequences */
  const seqparLayout_t* kvLayout; /**< cross-attention: layout of keys and values; NULL: `layout` applied to kvTokens */
  int64_t sequences;              /**< number of packed sequences; 0: the tokens are one sequence */
  const int64_t* cuSeqlens;       /**< [sequences + 1]: start of each in the whole, ascending from 0 to the number of
                                       tokens. Independent of the layout's packing. Tokens never see other sequences,
                                       and NaN and infinity in one sequence never reach results of another, except
                                       dGates of seqparAttnFixed, which is a sum over all tokens. Not with kvTokens */

  int64_t heads;    /**< heads of queries and outputs (softmax), of values and outputs (linear); at least 1 */
  int64_t kvHeads;  /**< softmax: heads of keys and values; linear: heads of queries and keys. A divisor of heads; 0:
                         same as heads */
  int64_t headDim;  /**< length of a query and of a key, at least 1. Linear, on GPUs: a multiple of 16, at most 256 */
  int64_t valueDim; /**< length of a value; 0: headDim. Linear, on GPUs: a multiple of 16 */
  int dataType;     /**< a seqparDataType_t: of q, k, v, out and their gradients */
  int gateTypes[SEQPAR_ATTN_MAX_GATES]; /**< linear: seqparDataType_t of each gate and its gradient: fp32 or bf16 */
  int wireType; /**< a seqparDataType_t: of sent partial results (sums, outputs, states); default fp32 */
  float scale;  /**< multiplies the scores; 0: 1 / sqrt(headDim) */

  int mask;            /**< softmax: a seqparAttnMask_t. Linear attention is always causal */
  int64_t windowLeft;  /**< softmax: maximum number of visible tokens before its own; SEQPAR_ATTN_NO_WINDOW: all */
  int64_t windowRight; /**< the same after its own; SEQPAR_ATTN_NO_WINDOW: all, or none with seqparAttnCausal */
  float softcap;       /**< softmax: scores become softcap * tanh(score / softcap); 0: none */
  int sinks;           /**< softmax: 1: a learned logit per head is added to the softmax's denominator (gpt-oss) */

  int inner; /**< USP: ranks per Ulysses group; DOUBLE_RING: per window; STARTRAIL: per team; MESH, ATTENTION2D:
                  a, ranks per Q group. A divisor of the number of ranks; 0: the library's choice */
  int ulyssesOutside; /**< USP: 0: the ranks of a Ulysses group are consecutive; 1: the ranks of a ring are */
  int training;       /**< 1 (default): backward may be called; 0: forward only, with less workspace */
  int deterministic;  /**< 1: bitwise reproducible on GPUs too, at a cost, as hosts always are; 0 (default): block
                         kernels  of GPUs may add in any order in the backward pass */
  const seqparAttnKernel_t* kernel; /**< softmax: the caller's block kernel; NULL: the library's */
  int reserve;    /**< 1: forward keeps data in the caller's `reserve` that backward would otherwise exchange or compute
                       again: seqparAttnPlanReserveSize() bytes from each forward pass to its backward pass; 0
                       (default): only (out, lse), or `saved`. Softmax: the exchanged tensors, with ULYSSES,
                       MEGATRON_SP, USP and ALLGATHER_KV. Linear, on GPUs: states within the rank; packed sequences with
                       `initial` or dInitial compute them again. The delta rule: the operands of each 64 tokens, in 16
                       bits with keys of up to 128 channels. All others: 0 bytes. 2: also Mamba-2's states, with about
                       as many heads as SMs (docs/mamba.md), and GLA's operands (docs/linear_attention.md) */
  int64_t slices; /**< softmax: number of slices of the mask, at most SEQPAR_ATTN_MOST_SLICES; 0: none, a query sees
                       all keys that `mask`, the window and the packing allow. Not with packed sequences: documents are
                       slices. Not with DIST_ATTN */
  const seqparAttnSlice_t* slice; /**< [slices]: a query sees the keys that a slice and `mask` and the window allow. No
                                       two slices contain the same pair of a query and a key. Columns are positions of
                                       keys, also in cross-attention, which aligns only `mask` and the window at the
                                       ends. The mask is the same for all batch entries and heads. A query that sees
                                       nothing has out = 0 and lse = -inf. A key that no query sees is not read, and
                                       its gradients are 0 */
  int normalize; /**< Delta, GatedDelta and Kda: 1: every query and key is divided by sqrt(its sum of squares + 1e-6)
                      before use, and dq and dk are gradients of the given ones. With beta in [0, 2] the products of
                      transitions are then bounded, so AUTO may choose scans that form them; 0 (default): used as
                      given, and states grow without limit if beta times a key's sum of squares exceeds 2 */
  int inputGate; /**< Gla, Scalar, Fixed and Sum: 1: an input gate b [batch][tokens][heads] multiplies the update of the
                      state: S_t = A_t S_(t-1) + b_t k_t v_t^T (dt of Mamba-2, arXiv 2405.21060). It follows the
                      family's gates: its index in gates[], gateTypes[] and dGates[] is seqparAttnFamilyQuery()'s
                      number of gates. Any finite value. GPUs may round b v and its gradient to dataType, and keep
                      b v in the workspace. 0 (default): absent, all b_t are 1 */
} seqparAttnDesc_t;

#define SEQPAR_ATTN_DESC_INITIALIZER                                                                                   \
  {                                                                                                                    \
    sizeof(seqparAttnDesc_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparAttnSoftmax, seqparAttnAuto, 1, 0, NULL, \
        NULL, 0, NULL, 0, NULL, 1, 0, 0, 0, seqparFloat32, {0, 0, 0, 0}, seqparFloat32, 0.0f, seqparAttnFull,          \
        SEQPAR_ATTN_NO_WINDOW, SEQPAR_ATTN_NO_WINDOW, 0.0f, 0, 0, 0, 1, 0, NULL, 0, 0, NULL, 0, 0                      \
  }

/**
 * Collective over `comm`: creates a plan. With comm NULL the caller has the whole sequence, on host memory. Sends only
 * the messages of seqparRingCreate(), seqparCommSplit() and seqparConfig_t::checkArguments. The communicator must
 * outlive the plan, and runs the calls of a plan in call order on every rank.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a value out of range, a packing that does not ascend or end at the
 * number of tokens, head counts that do not divide, `layout` with tokensOfRanks, kvTokens with packed sequences or
 * linear attention, slices outside the tokens or with packed sequences, two slices with a common query and key: the
 * text names both), InvalidUsage (a feature that the algorithm does not support: the text lists the algorithms that do;
 * a head dimension or architecture without kernels; a library that cannot be opened; descriptions that differ between
 * ranks that compare them), SystemError (no memory), RemoteError.
 */
SEQPAR_API seqparResult_t seqparAttnPlanCreate(seqparAttnPlan_t* plan, const seqparAttnDesc_t* desc, seqparComm_t comm);

/** Frees a plan after its enqueued work. Collective like Create. NULL has no effect. Errors: InvalidArgument. */
SEQPAR_API seqparResult_t seqparAttnPlanDestroy(seqparAttnPlan_t plan);

/**
 * Stores the bytes of workspace that Prepare needs on this rank, in the kind of memory that the plan uses. Errors:
 * InvalidArgument.
 */
SEQPAR_API seqparResult_t seqparAttnPlanWorkspaceSize(seqparAttnPlan_t plan, size_t* bytes);

/**
 * Stores the bytes of `reserve` that a forward pass and its backward pass need on this rank: 0 without the desc's
 * `reserve`, with training = 0, and for algorithms without reserve. Errors: InvalidArgument.
 */
SEQPAR_API seqparResult_t seqparAttnPlanReserveSize(seqparAttnPlan_t plan, size_t* bytes);

/**
 * Collective: builds kernels and allocates all memory. `workspace`, at least `bytes` long and aligned to 256, belongs
 * to the caller, must outlive the plan, and must not be in use by pending work, since tables are written to it at once;
 * NULL with 0: the plan allocates it. One call of a plan uses its workspace at a time. On GPUs a call waits for earlier
 * ones on other streams, in a capture for those of the capture: the caller orders replays. On hosts the caller orders
 * calls on several streams. ZECO between GPUs that map each other's memory also allocates two states of all heads, four
 * with `training`, like seqparScanDeviceCreate(). On GPUs it returns when all ranks have prepared their plans
 * (seqparCommBarrier()). Errors: InvalidArgument (no plan, too few bytes, misaligned), InvalidUsage (prepared before),
 * SystemError (no memory), UnhandledCudaError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparAttnPlanPrepare(seqparAttnPlan_t plan, void* workspace, size_t bytes);

/**
 * Stores the layout of the plan's tokens, with `cuSeqlens` NULL, and the number of this rank's tokens; either pointer
 * may be NULL. `layout` starts from SEQPAR_LAYOUT_INITIALIZER. With tokensOfRanks the layout has ranks = 0. Errors:
 * InvalidArgument (no plan, a layout without the initializer's values).
 */
SEQPAR_API seqparResult_t seqparAttnPlanLayout(seqparAttnPlan_t plan, seqparLayout_t* layout, int64_t* localTokens);

/**
 * The choice as JSON: algorithm, shape, layout, block kernel, workspace, bytes sent per rank, predicted times in us,
 * and for every other algorithm its predicted time or the reason why it is not supported.
 *
 *   text   out, zero-terminated; NULL: length only
 *   bytes  in: size of `text`; out: bytes of the text, including the zero
 *
 * Errors: InvalidArgument (no plan, NULL, `text` too short).
 */
SEQPAR_API seqparResult_t seqparAttnPlanExplain(seqparAttnPlan_t plan, char* text, size_t* bytes);

/**
 * Arguments of a forward pass. Start from SEQPAR_ATTN_FORWARD_INITIALIZER. "heads" and "kvHeads" are those of the desc.
 */
typedef struct {
  size_t size;            /**< sizeof(seqparAttnForwardArgs_t) */
  unsigned magic;         /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;       /**< SEQPAR_VERSION_CODE */
  seqparAttnTensor_t q;   /**< [batch][tokens][heads; linear: kvHeads][headDim] */
  seqparAttnTensor_t k;   /**< [batch][kv tokens][kvHeads][headDim] */
  seqparAttnTensor_t v;   /**< [batch][kv tokens][kvHeads; linear: heads][valueDim] */
  seqparAttnTensor_t out; /**< [batch][tokens][heads][valueDim], out. A row without visible keys is 0 */
  float* lse;             /**< softmax: [batch][heads][tokens] dense, out: natural logarithm of the row's sum of
                               exponentials, sinks included; -inf for a row without visible keys and sink. NULL with
                               training = 0 */
  const float* sinks;     /**< softmax with `sinks`: [heads] */
  seqparAttnTensor_t gates[SEQPAR_ATTN_MAX_GATES]; /**< linear: the gates of the family, seqparAttnFamilyQuery()'s,
                                                        then the input gate, if the desc has `inputGate`.
                                                        log_decay: natural logarithms of the decays, at most 0; -inf
                                                        discards the state. beta: the strength of a token's update, in
                                                        [0, 1], or [0, 2] for negative eigenvalues of A */
  const float* initial; /**< linear: [batch][heads][headDim][valueDim], the state before the first token of the
                             sequence. Read on rank 0 only; with packed sequences [sequences][heads][...], on every
                             rank. NULL: zeros */
  float* saved;         /**< linear: [batch][heads][headDim][valueDim], out: the state before this rank's first
                             token, for backward. NULL with training = 0 */
  float* final;         /**< linear: [batch][heads][headDim][valueDim], out: the state after this rank's last token,
                             with packed sequences that of this token's sequence. On a rank without tokens: the
                             `final` of the rank before; on rank 0 without tokens `initial`, or zeros with packed
                             sequences. LOCAL: a rank without tokens, other than rank 0, has zeros. NULL: not
                             computed */
  void* reserve;        /**< seqparAttnPlanReserveSize() bytes, aligned to 16, out: opaque data for the backward
                             pass. Not read if the size is 0 */
} seqparAttnForwardArgs_t;

#define SEQPAR_ATTN_FORWARD_INITIALIZER                                                                          \
  {                                                                                                              \
    sizeof(seqparAttnForwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, NULL,                                                            \
        {{NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}}, NULL, NULL, NULL, NULL             \
  }

/**
 * Forward pass; collective over the plan's communicator. Inputs must stay unchanged, and outputs unread, until the work
 * is done on `stream` (a cudaStream_t on GPUs; a seqparStream_t on hosts, NULL: to completion in the call). No output
 * overlaps an input or another output. Empty tensors may be NULL.
 *
 * Softmax: masked keys have probability 0, so NaN and infinity in k or v may reach all rows of their sequence.
 *
 * Alignment: to the element. Families without beta on GPUs, tensors of 16 bits: addresses of q, k, v, out, gates per
 * channel and their gradients, and strides of dimensions of more than 1, are multiples of 16 bytes.
 *
 * Errors: InvalidArgument (no plan, NULL, a wrong magic, strides, alignment, memory of the wrong kind, overlap),
 * InvalidUsage (not prepared; passes or plans that differ between ranks that compare them), SystemError (a kernel of
 * the caller failed; no memory), UnhandledCudaError, RemoteError, the error of a lost communicator. A pass that fails
 * after these checks ends the communicator. Synchronize `stream` before the buffers are freed: work may be on it.
 */
SEQPAR_API seqparResult_t seqparAttnForward(seqparAttnPlan_t plan, const seqparAttnForwardArgs_t* args, void* stream);

/** Arguments of a backward pass. Start from SEQPAR_ATTN_BACKWARD_INITIALIZER. Shapes as in the forward pass. */
typedef struct {
  size_t size;                                     /**< sizeof(seqparAttnBackwardArgs_t) */
  unsigned magic;                                  /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;                                /**< SEQPAR_VERSION_CODE */
  seqparAttnTensor_t q, k, v;                      /**< as given to the forward pass */
  seqparAttnTensor_t out;                          /**< softmax: as the forward pass wrote it. Linear: not read */
  const float* lse;                                /**< softmax: as the forward pass wrote it */
  const float* sinks;                              /**< softmax with `sinks`: as given to the forward pass */
  seqparAttnTensor_t gates[SEQPAR_ATTN_MAX_GATES]; /**< linear: as given to the forward pass */
  const float* saved;                              /**< linear: as the forward pass wrote it */
  const float* initial;          /**< linear with packed sequences: as given to the forward pass; else not read */
  seqparAttnTensor_t dOut;       /**< gradient of out */
  const float* dFinal;           /**< linear: gradient of the state after the last token of the sequence,
                                      [batch][heads][headDim][valueDim]; read on the last rank only. NULL: zeros */
  seqparAttnTensor_t dq, dk, dv; /**< out, shapes of q, k, v */
  seqparAttnTensor_t dGates[SEQPAR_ATTN_MAX_GATES]; /**< linear: out, gradients of the gates (of the logarithms), in
                                      their shapes; for gates per head the contribution of this rank's tokens, and the
                                      gradient is the sum over the ranks. data NULL: not computed */
  float* dSinks;       /**< softmax with `sinks`: [heads], out: contribution of this rank's tokens; the
                            gradient is the sum over the ranks */
  float* dInitial;     /**< linear: out, gradient of `initial`: on rank 0; with packed sequences each
                            rank's contribution. NULL: not computed */
  const void* reserve; /**< as the forward pass wrote it */
} seqparAttnBackwardArgs_t;

#define SEQPAR_ATTN_BACKWARD_INITIALIZER                                                                          \
  {                                                                                                               \
    sizeof(seqparAttnBackwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, NULL,                                                             \
        {{NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}}, NULL, NULL, {NULL, 0, 0, 0}, NULL,  \
        {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0},                                                        \
        {{NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}}, NULL, NULL, NULL                    \
  }

/** Backward pass; collective over the plan's communicator. Conditions and errors as for seqparAttnForward(), and
 * InvalidUsage (a plan with training = 0). */
SEQPAR_API seqparResult_t seqparAttnBackward(seqparAttnPlan_t plan, const seqparAttnBackwardArgs_t* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_PLAN_H_ */
