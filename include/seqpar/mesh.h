/*
 * seqpar/mesh.h - data movements of Mesh-Attention: groups, schedules and their steps.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply. An `axis` is a seqparMeshAxis_t, a `pass` a seqparMeshPass_t, a `dataType` and a
 * `wireType` a seqparDataType_t; other values are InvalidArgument.
 *
 * n = a x b ranks each own block i of the queries and block i of the keys and values. Attention of all blocks to all
 * blocks is an n x n matrix of tiles; rank i computes the a x b tiles of the rows in its Q group and the columns in its
 * KV group:
 *
 *     Q group of rank i    ranks a * floor(i/a) + x, x < a     a consecutive ranks
 *     KV group of rank i   ranks (i mod a) + a * x, x < b      b ranks with distance a
 *
 * In each group blocks move in a ring, from a member to the next. The member at position p has as block #u the block of
 * the member at position p - u (modulo the size); #0 is its own. Three kinds of movement:
 *
 *     receive, step u = 1, 2, ..    #(u-1) is sent to the successor, #u is received from the predecessor
 *     send, step u = 1, 2, ..       the partial result of #u is sent to the successor; that of #(u+1) is received from
 *                                   the predecessor and added, until it has reached its owner
 *     all-gather, reduce-scatter    the same in one call, without overlap
 *
 * A schedule assigns to each step of a ring the tiles to compute concurrently. All ranks use the same schedule:
 *
 *     seqparMeshCreate(&mesh, 0, 0, &params, comm);                   // the shape with the lowest predicted time
 *     seqparMeshSchedule(mesh, seqparMeshForward, steps, tiles, &stepCount, &tileCount);
 *     for (s = 0; s < stepCount; ++s) {
 *       post steps[s], by its operation and index, on `stream`:
 *         RecvQ:  seqparMeshReceive(seqparMeshAxisQ, q parts of #(index-1) and #index, 1, mesh, stream);
 *         RecvKv: seqparMeshReceive(seqparMeshAxisKv, k and v parts of the same, 2, mesh, stream);
 *         SendO:  seqparMeshReduceO(index, &row, mesh, stream);         // row.o, row.lse: O#index, lse#index
 *       for (t = 0; t < steps[s].tileCount; ++t)                      // compute concurrently
 *         attend(tiles[steps[s].firstTile + t]);                      // O#q, lse#q += Q#q to K#kv, V#kv
 *       seqparStreamSynchronize(stream);                              // wait
 *     }
 *     seqparMeshReduceO(0, &row, mesh, stream);                       // merge the last carry into this rank's rows
 *
 * Source: Mesh-Attention (arXiv 2512.20968): Table 1 (rings), Algorithm 2 (forward schedule), section 3.6 (backward
 * schedule). Ring Attention is a = 1, its variant that sends queries is b = 1, Attention2D is a = b.
 */
#ifndef SEQPAR_MESH_H_
#define SEQPAR_MESH_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparMesh* seqparMesh_t; /**< a shape a x b over a communicator, with its schedules */

/** A direction of the mesh. */
typedef enum {
  seqparMeshAxisQ = 0, /**< the Q group: moves queries, outputs and their gradients */
  seqparMeshAxisKv = 1 /**< the KV group: moves keys, values and their gradients */
} seqparMeshAxis_t;

/** A pass of attention. */
typedef enum { seqparMeshForward = 0, seqparMeshBackward = 1 } seqparMeshPass_t;

/** Data movement of a step. */
typedef enum {
  seqparMeshCompute = 0,  /**< none: tiles only */
  seqparMeshRecvQ = 1,    /**< Q group, forward: queries */
  seqparMeshRecvKv = 2,   /**< KV group, both passes: keys and values */
  seqparMeshRecvOdoq = 3, /**< Q group, backward: queries, gradients of outputs, lse, and outputs or rowsum(O * dO) */
  seqparMeshSendO = 4,    /**< Q group, forward: partial outputs with their lse */
  seqparMeshSendDq = 5,   /**< Q group, backward: partial gradients of queries */
  seqparMeshSendDkv = 6   /**< KV group, backward: partial gradients of keys and values */
} seqparMeshOperation_t;

#define SEQPAR_MESH_OPERATIONS 7 /**< number of operations, Compute included */

/* ---------------------------------------------------------------------------------------------------------------------
 * Choice of the shape
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * Description of the attention for the choice of shape and schedules. Start from SEQPAR_MESH_PARAMS_INITIALIZER. All
 * ranks pass the same values. They affect time only, never results.
 */
typedef struct {
  size_t size;        /**< sizeof(seqparMeshParams_t) */
  unsigned magic;     /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;   /**< SEQPAR_VERSION_CODE */
  int64_t tokens;     /**< tokens per block (per rank), times batch, at least 1 */
  int64_t heads;      /**< query heads, at least 1 */
  int64_t kvHeads;    /**< heads of keys and values, a divisor of heads; 0: as many as query heads */
  int64_t headDim;    /**< length of a query and of a key, at least 1 */
  int64_t valueDim;   /**< length of a value; 0: headDim */
  int dataType;       /**< a seqparDataType_t: of queries, keys, values and gradients of outputs */
  int wireType;       /**< a seqparDataType_t: of sent partial outputs and gradients. An lse is always fp32 */
  int causal;         /**< 1: tokens are striped over the ranks and masked, so a tile is half of the work; 0: full */
  int sendDelta;      /**< backward: 1: send rowsum(O * dO) instead of O, fp32, [heads][tokens]; 0: send O */
  double forwardUs;   /**< time of one full tile (tokens x tokens, all heads) in the forward pass, us. 0:
                           communication alone decides */
  double backwardUs;  /**< the same in the backward pass */
  double latencyUs;   /**< latency of a hop, us */
  double bandwidth;   /**< bandwidth of a hop, bytes per second. 0 for both: the communicator's measured values */
  int forwardWeight;  /**< weight of the forward pass in the minimized sum */
  int backwardWeight; /**< weight of the backward pass; not both 0 */
} seqparMeshParams_t;

#define SEQPAR_MESH_PARAMS_INITIALIZER                                                                   \
  {                                                                                                      \
    sizeof(seqparMeshParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 1, 1, 0, 1, 0, seqparBfloat16, \
        seqparFloat32, 0, 1, 0., 0., 0., 0., 1, 1                                                        \
  }

/** Cost of a shape for one rank. Times are predicted. */
typedef struct {
  int a, b;                 /**< the shape */
  int64_t forwardBytes;     /**< sent by a rank in the forward pass: (a-1)(Q + O) + (b-1) KV */
  int64_t backwardBytes;    /**< in the backward pass: (a-1)(OdOQ + dQ) + (b-1)(KV + dKV) */
  double forwardUs;         /**< time of the forward schedule, us */
  double backwardUs;        /**< time of the backward schedule, us */
  double forwardExposedUs;  /**< part of forwardUs with communication but no computation */
  double backwardExposedUs; /**< part of backwardUs with communication but no computation */
} seqparMeshEstimate_t;

/**
 * Stores all shapes of this communicator's size, sorted by forwardWeight * forwardUs + backwardWeight * backwardUs
 * (then by bytes, then by a). `estimates` NULL: stores the number of shapes only.
 *
 *   estimates  [*count], out
 *   count      in: entries of `estimates`; out: number of shapes; at most the given number is stored
 *
 * Not collective; equal on all ranks. Errors: InvalidArgument (NULL, wrong magic, a value out of range).
 */
SEQPAR_API seqparResult_t seqparMeshPlan(const seqparMeshParams_t* params, seqparComm_t comm,
                                         seqparMeshEstimate_t* estimates, int* count);

/* ---------------------------------------------------------------------------------------------------------------------
 * A mesh
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * Creates a mesh of a x b = nranks over `comm`, with a schedule per pass; a = b = 0: the first shape of
 * seqparMeshPlan(). Sends no messages and creates no communicator: many meshes over one communicator are cheap.
 * `params` NULL: SEQPAR_MESH_PARAMS_INITIALIZER's. Destroy the mesh before `comm`. Not collective, but all ranks that
 * use the mesh must pass the same arguments. Errors: InvalidArgument (NULL, a x b differs from the number of ranks, as
 * seqparMeshPlan).
 */
SEQPAR_API seqparResult_t seqparMeshCreate(seqparMesh_t* mesh, int a, int b, const seqparMeshParams_t* params,
                                           seqparComm_t comm);

/** Frees a mesh; enqueued work is not affected. NULL has no effect. Errors: InvalidArgument (no such mesh). */
SEQPAR_API seqparResult_t seqparMeshDestroy(seqparMesh_t mesh);

/** Stores the sizes of the Q groups and of the KV groups; either pointer may be NULL. Errors: InvalidArgument (no such
 * mesh). */
SEQPAR_API seqparResult_t seqparMeshShape(seqparMesh_t mesh, int* a, int* b);

/**
 * The group of this rank. `ranks` [a or b], out: the members by position; `position`, out: this rank's. Either may be
 * NULL. Block #u of this rank is the block of ranks[(position - u) modulo size]. Errors: InvalidArgument (no such
 * mesh, axis).
 */
SEQPAR_API seqparResult_t seqparMeshGroup(seqparMesh_t mesh, int axis, int* ranks, int* position);

/** A tile: the attention of the queries #q to the keys and values #kv of this rank. */
typedef struct {
  int q;  /**< 0..a-1 */
  int kv; /**< 0..b-1 */
} seqparMeshTile_t;

/**
 * A step of a schedule: one movement, and the tiles to compute concurrently. All their inputs are present when the step
 * starts.
 */
typedef struct {
  int operation; /**< a seqparMeshOperation_t */
  int index;     /**< 1, 2, ..: step of its ring; 0 for Compute */
  int firstTile; /**< the first of its tiles */
  int tileCount; /**< number of its tiles, 0 or more */
} seqparMeshStep_t;

/**
 * The schedule of a pass: every tile once, each after its blocks have arrived. Each partial result is sent after the
 * last of its tiles, and its rows (or columns) are not accessed afterwards. After the last movement the program calls a
 * send of index 0 for each result.
 *
 *   steps, tiles          out; NULL for both: counts only
 *   stepCount, tileCount  in: entries of the arrays (not read if they are NULL); out: counts of the schedule
 *
 * Errors: InvalidArgument (no such mesh, pass, NULL, arrays that are too short).
 */
SEQPAR_API seqparResult_t seqparMeshSchedule(seqparMesh_t mesh, int pass, seqparMeshStep_t* steps,
                                             seqparMeshTile_t* tiles, int* stepCount, int* tileCount);

/**
 * The schedule as text, with the predicted time of each step.
 *
 *   json   1: one JSON object; 0: a table and a diagram
 *   text   out, zero-terminated; NULL: length only
 *   bytes  in: size of `text`; out: bytes of the text, including the zero
 *
 * Errors: InvalidArgument (no such mesh, pass, NULL, `text` too short).
 */
SEQPAR_API seqparResult_t seqparMeshScheduleText(seqparMesh_t mesh, int pass, int json, char* text, size_t* bytes);

/* ---------------------------------------------------------------------------------------------------------------------
 * Steps
 *
 * All functions are collective over the mesh's communicator. Inputs must stay unchanged, and outputs must not be
 * accessed, until the work is done on `stream`. Blocks may differ in length; sender and receiver must pass equal
 * lengths for the same block.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Maximum number of tensors of a block: parts of one call. */
#define SEQPAR_MESH_PARTS 8

/** One tensor of a receive step. */
typedef struct {
  const void* send;    /**< data of block #(u-1), contiguous; NULL if sendBytes is 0 */
  size_t sendBytes;    /**< size of `send`, 0 or more */
  void* receive;       /**< out: data of block #u, contiguous; NULL if receiveBytes is 0 */
  size_t receiveBytes; /**< size of `receive`, equal to the predecessor's sendBytes */
} seqparMeshPart_t;

/**
 * A receive step (Recv Q, Recv KV, Recv OdOQ): each part's `send` is sent to the successor in the group, its `receive`
 * is received from the predecessor, all in one movement.
 *
 *   parts  [count], read during the call; the same count, at most SEQPAR_MESH_PARTS, on all members
 *
 * Receive buffers must not overlap each other or any send buffer. Errors: InvalidArgument (no such mesh, axis, count,
 * NULL, overlap), InvalidUsage (a group of one rank), RemoteError.
 */
SEQPAR_API seqparResult_t seqparMeshReceive(int axis, const seqparMeshPart_t* parts, int count, seqparMesh_t mesh,
                                            void* stream);

/** A row for seqparMeshReduceO(). Start from SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER. */
typedef struct {
  size_t size;         /**< sizeof(seqparMeshReduceOParams_t) */
  unsigned magic;      /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;    /**< SEQPAR_VERSION_CODE */
  void* o;             /**< [tokens][heads][dim] of dataType: the normalized partial output of #index. Index 0: out, the
                            result; otherwise undefined afterwards. In a group of one rank it is already the result */
  float* lse;          /**< [heads][tokens], natural logarithms of the sums of `o`, in and out like `o` */
  void* carry;         /**< [carryTokens][heads][dim] of wireType, out, and in from index 2: the same buffer in all
                            steps, large enough for the longest block */
  float* carryLse;     /**< [heads][carryTokens], like `carry` */
  int64_t tokens;      /**< tokens of #index, 0 or more */
  int64_t carryTokens; /**< of #(index+1), or of #0 in the last step; not read for index 0 */
  int64_t heads;       /**< query heads, at least 1 */
  int64_t dim;         /**< length of a value, at least 1 */
  int dataType;        /**< a seqparDataType_t: of `o` */
  int wireType;        /**< dataType, or any seqparDataType_t if dataType is seqparFloat32: of `carry` */
} seqparMeshReduceOParams_t;

#define SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER                                                                 \
  {                                                                                                             \
    sizeof(seqparMeshReduceOParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, (void*)0, (float*)0, (void*)0, \
        (float*)0, 0, 0, 1, 1, seqparFloat32, seqparFloat32                                                     \
  }

/**
 * Step `index` of Send O: hands over the complete row #index. The function merges the last received row (in `carry`)
 * into it, sends it to the successor, and receives the predecessor's next row into `carry`. Index 1 has nothing to
 * merge. Index 0, after all others, merges and sends nothing: the row is then the result. No row is therefore accessed
 * while its tiles are still being computed. Two partial outputs (o, lse) merge as
 *
 *     lse' = log(exp(lse_1) + exp(lse_2))     o' = exp(lse_1 - lse') o_1 + exp(lse_2 - lse') o_2
 *
 * in fp32; an output with lse -inf (no tokens) adds nothing; two of them give o' = 0.
 *
 *   index   0 to a - 1
 *   params  read during the call; all ranks pass the same index, heads, dim and types, and the ranks of a ring pass
 * equal numbers of tokens for the same block
 *
 * No two of the four buffers may overlap. Errors: InvalidArgument (no such mesh, index, NULL, wrong magic, a negative
 * or overflowing shape, types, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparMeshReduceO(int index, const seqparMeshReduceOParams_t* params, seqparMesh_t mesh,
                                            void* stream);

/** One tensor of a send step. */
typedef struct {
  void* data;        /**< the complete partial sums of #index, [count] of dataType. Index 0: out, the result;
                          otherwise undefined afterwards */
  size_t count;      /**< elements of `data` */
  void* carry;       /**< [carryCount] of wireType, out, and in from index 2: the same buffer in all steps */
  size_t carryCount; /**< elements of #(index+1), or of #0 in the last step; not read for index 0 */
} seqparMeshSum_t;

/**
 * Step `index` of Send dQ (axis Q) or Send dKV (axis KV): like seqparMeshReduceO(), with partial results added in fp32.
 * Errors: as seqparMeshReduceO() and InvalidArgument (axis, count).
 */
SEQPAR_API seqparResult_t seqparMeshReduceSum(int axis, int index, const seqparMeshSum_t* parts, int count,
                                              int dataType, int wireType, seqparMesh_t mesh, void* stream);

/* ---------------------------------------------------------------------------------------------------------------------
 * Without overlap
 *
 * Blocks are in order of the members' positions, not of #u: seqparMeshGroup() returns both.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/**
 * All receive steps of an axis in one call, for one tensor.
 *
 *   send     [bytes[position]]: this rank's block
 *   receive  out: the blocks of all members in order of position, without gaps; `send` may be its final address in it
 *   bytes    [members]: size of each member's block, the same on all members, read during the call
 *
 * Errors: InvalidArgument (no such mesh, axis, NULL, any other overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparMeshAllGather(int axis, const void* send, void* receive, const size_t* bytes,
                                              seqparMesh_t mesh, void* stream);

/**
 * All Send dQ or Send dKV steps of an axis in one call, for one tensor: sums in fp32, in order of position.
 *
 *   send     the partial sums of all members' blocks in order of position, without gaps, of dataType
 *   receive  [counts[position]] of dataType, out: the sum of this rank's block
 *   counts   [members]: elements of each member's block, the same on all members, read during the call
 *
 * Errors: InvalidArgument (no such mesh, axis, NULL, type, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparMeshReduceScatter(int axis, const void* send, void* receive, const size_t* counts,
                                                  int dataType, seqparMesh_t mesh, void* stream);

/** Arguments of seqparMeshReduceScatterO(). Start from SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER. */
typedef struct {
  size_t size;           /**< sizeof(seqparMeshReduceScatterOParams_t) */
  unsigned magic;        /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;      /**< SEQPAR_VERSION_CODE */
  const void* o;         /**< [sum of tokens][heads][dim] of dataType: the partial outputs of all members' blocks, in
                              order of position */
  const float* lse;      /**< [heads][sum of tokens], natural logarithms of the sums of `o` */
  void* result;          /**< [tokens[position]][heads][dim] of dataType, out */
  float* resultLse;      /**< [heads][tokens[position]], out */
  const int64_t* tokens; /**< [a]: tokens of each member's block, the same on all members */
  int64_t heads;         /**< query heads; 0: no work */
  int64_t dim;           /**< length of a value; 0: no work */
  int dataType;          /**< a seqparDataType_t: of `o` and `result` */
} seqparMeshReduceScatterOParams_t;

#define SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER                                                 \
  {                                                                                                     \
    sizeof(seqparMeshReduceScatterOParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, (const void*)0, \
        (const float*)0, (void*)0, (float*)0, (const int64_t*)0, 1, 1, seqparFloat32                    \
  }

/**
 * All Send O steps in one call: partial outputs merge in fp32, in order of position, as in seqparMeshReduceO().
 * `params` and its `tokens` are read during the call. Neither output overlaps another buffer. Errors: InvalidArgument
 * (no such mesh, NULL, wrong magic, a negative or overflowing shape, type, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparMeshReduceScatterO(const seqparMeshReduceScatterOParams_t* params, seqparMesh_t mesh,
                                                   void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_MESH_H_ */
