/*
 * seqpar/lse.h - merges of partial attention over a sharded KV cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply. In decoding every rank computes attention of the same queries to its shard of the
 * keys (context parallel decoding: Context Parallelism for Scalable Million-Token Inference, arXiv 2411.01783, section
 * 3.6; Helix Parallelism, arXiv 2507.07120). These collectives merge the partial outputs with their log-sum-exps:
 *
 *     lse' = log sum_r exp(lse_r)          out' = sum_r exp(lse_r - lse') out_r
 *
 * in fp32 and in rank order, rounded once. All ranks therefore receive identical bits, on every transport.
 * seqparReduceScatterLse() in exchange.h is the same merge with scattered tokens.
 */
#ifndef SEQPAR_LSE_H_
#define SEQPAR_LSE_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Shape of a merge. Start from SEQPAR_LSE_PARAMS_INITIALIZER. All ranks pass the same values. */
typedef struct {
  size_t size;             /**< sizeof(seqparLseParams_t) */
  unsigned magic;          /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;        /**< SEQPAR_VERSION_CODE */
  int dataType;            /**< a seqparDataType_t: of the outputs. An lse is always fp32 */
  int64_t rows;            /**< queries, 0 or more: the batch, times queries per sequence */
  int64_t heads;           /**< query heads, at least 1 */
  int64_t headDim;         /**< length of a value, at least 1 */
  const int32_t* rowCount; /**< NULL: all rows. Otherwise the address of the number of rows in use, 0 to `rows`, the
                                same on all ranks, in memory of the communicator's kind; it is read when the work runs
                                on `stream`. A captured graph or queued work thus serves batches of up to `rows`
                                queries. Later rows of the outputs are undefined afterwards */
} seqparLseParams_t;

#define SEQPAR_LSE_PARAMS_INITIALIZER \
  { sizeof(seqparLseParams_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, seqparFloat32, 0, 1, 1, (const int32_t*)0 }

/**
 * Merges the partial results of all ranks; every rank receives all rows. Collective.
 *
 *   out      [rows][heads][headDim] of dataType: this rank's partial output, normalized by its own sum
 *   lse      [rows][heads] fp32: natural logarithms of the sums of exponentials. -inf: this rank has no key for the
 *            row; its `out` for this row is not read. A rank without tokens passes -inf everywhere
 *   outAll   [rows][heads][headDim] of dataType, out
 *   lseAll   [rows][heads] fp32, out
 *
 * Rows that no rank has become 0 with lse -inf. NaN in a row affects this row only. Both outputs may be in place
 * (outAll = out and lseAll = lse); no other overlap is allowed. Inputs must stay unchanged, and outputs unread, until
 * the work is done on `stream`. Short messages are sent to all ranks in one exchange; longer ones are merged by the
 * ranks in equal parts, which are then gathered. On GPUs *rowCount is not compared, and values outside 0 to `rows` are
 * clamped. Over NCCL, and if the bytes of a head (headDim x size of a number) exceed 8 KiB, later rows are also sent.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, type, sizes out of range or overflowing, memory of the wrong kind,
 * overlap; hosts: *rowCount out of range), InvalidUsage (hosts: *rowCount differs between ranks), RemoteError. On hosts
 * an error about *rowCount is one of the work, and ends `comm`.
 */
SEQPAR_API seqparResult_t seqparAllReduceLse(const void* out, const float* lse, void* outAll, float* lseAll,
                                             const seqparLseParams_t* params, seqparComm_t comm, void* stream);

/**
 * Merges the partial results of all ranks; every rank receives all rows of its heads, as a projection that is split by
 * heads over the same ranks requires. Collective.
 *
 *   out, lse   as in seqparAllReduceLse()
 *   outShard   [rows][heads of the rank][headDim] of dataType, out
 *   lseShard   [rows][heads of the rank] fp32, out
 *
 * seqparHeadsOfMember(heads, 0, ranks, rank) returns the heads of a rank: consecutive runs, the first ranks have one
 * more if they do not divide. A rank without heads passes NULL as outputs. No overlap is allowed. Rows, streams,
 * rowCount and errors as in seqparAllReduceLse().
 */
SEQPAR_API seqparResult_t seqparReduceScatterLseByHeads(const void* out, const float* lse, void* outShard,
                                                        float* lseShard, const seqparLseParams_t* params,
                                                        seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_LSE_H_ */
