/*
 * seqpar/short_conv.h - the short convolution before a layer of linear attention, over a sequence that is sharded
 * across ranks. Library: libseqpar_attn.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too; the text of an error is seqparAttnGetLastError()'s.
 */
#ifndef SEQPAR_SHORT_CONV_H_
#define SEQPAR_SHORT_CONV_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparShortConv* seqparShortConv_t; /**< one convolution on one communicator, with its workspace */

#define SEQPAR_SHORT_CONV_WIDTH 8 /**< the longest kernel */

/**
 * A causal convolution over tokens, each channel by itself, as Mamba, GLA and DeltaNet have it before their layers:
 *
 *     z_t = bias + sum over j = 0 ... width-1 of weight[width-1-j] x_(t-j)          y_t = z_t, or z_t / (1 + exp(-z_t))
 *
 * with x = 0 before a sequence begins. Start from SEQPAR_SHORT_CONV_INITIALIZER. All ranks give the same values.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparShortConvDesc_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t batch;    /**< sequences of equal length, at least 1; 1 with packed sequences */
  int64_t tokens;   /**< of the whole sequence, over all ranks, 0 or more: cut as seqparContiguous does. Not read with
                         `tokensOfRanks` */
  const int64_t* tokensOfRanks; /**< [ranks]: contiguous shards of these lengths; NULL: as `tokens` says */
  int64_t sequences;            /**< packed sequences: how many; 0: the tokens are one sequence */
  const int64_t* cuSeqlens;     /**< [sequences + 1]: where each begins in the whole, ascending from 0 to the tokens */
  int64_t channels;             /**< at least 1 */
  int width;                    /**< of the kernel, 1 to SEQPAR_SHORT_CONV_WIDTH */
  int silu;                     /**< 1: SiLU behind it; 0: none */
  int dataType;                 /**< a seqparDataType_t: of x, y and their gradients */
  int weightType;               /**< a seqparDataType_t: of weight and bias */
  int training;                 /**< 1 (default): backward may be called; 0: forward only, with less workspace */
} seqparShortConvDesc_t;

#define SEQPAR_SHORT_CONV_INITIALIZER                                                                      \
  {                                                                                                        \
    sizeof(seqparShortConvDesc_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 1, 0, NULL, 0, NULL, 0, 4, 1, \
        seqparFloat32, seqparFloat32, 1                                                                    \
  }

/**
 * Collective over `comm`: makes a convolution and takes its memory, host or GPU as the communicator's; sends nothing
 * but what seqparConfig_t::checkArguments sends.
 * Pointers of `desc` are read during the call only. With comm NULL the caller has the whole sequence, on host memory.
 * The communicator must outlive it.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a value out of range, a packing that does not ascend or end at the
 * number of tokens), InvalidUsage (a communicator of GPUs, and a library that was built without CUDA; ranks that
 * differ), SystemError (no memory), UnhandledCudaError.
 */
SEQPAR_API seqparResult_t seqparShortConvCreate(seqparShortConv_t* conv, const seqparShortConvDesc_t* desc,
                                                seqparComm_t comm);

/** Frees it, when its enqueued work is done. Collective as Create is. NULL is allowed. Errors: InvalidArgument. */
SEQPAR_API seqparResult_t seqparShortConvDestroy(seqparShortConv_t conv);

/**
 * Forward; collective. The width-1 tokens before the shard come from as many ranks as hold them (seqparHaloExchange()),
 * beside the work on the others.
 *
 *   x, y     [batch][tokens of this rank][channels] of dataType, dense; y is out and does not overlap x
 *   weight   [channels][width] of weightType; the last of a channel multiplies the token itself
 *   bias     [channels] of weightType; NULL: zeros
 *
 * `stream` is a seqparStream_t, or NULL to run to completion in the call; on GPUs a cudaStream_t. Inputs must stay
 * unchanged, and outputs unread, until the work is done. Shards of no tokens may be NULL. One call of a convolution
 * runs at a time.
 *
 * Errors: InvalidArgument (NULL, overlap), SystemError, UnhandledCudaError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparShortConvForward(seqparShortConv_t conv, const void* x, const void* weight,
                                                 const void* bias, void* y, void* stream);

/** Arguments of a backward pass. Start from SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER. Shapes as in the forward pass. */
typedef struct {
  size_t size;        /**< sizeof(seqparShortConvBackwardArgs_t) */
  unsigned magic;     /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;   /**< SEQPAR_VERSION_CODE */
  const void* x;      /**< as given to the forward pass */
  const void* weight; /**< as given to the forward pass */
  const void* bias;   /**< as given to the forward pass */
  const void* dy;     /**< gradient of y */
  void* dx;           /**< out, gradient of x, complete: what later ranks' tokens add is fetched from them */
  float* dWeight;     /**< [channels][width], out: this rank's tokens' share; their sum over the ranks is the gradient.
                           NULL: not wanted */
  float* dBias;       /**< [channels], out: likewise. NULL: not wanted */
} seqparShortConvBackwardArgs_t;

#define SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER                                                                     \
  {                                                                                                                \
    sizeof(seqparShortConvBackwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL                                                                                                 \
  }

/**
 * Backward; collective. What forward computed between is computed again. `args` is read during the call; conditions as
 * for the forward pass. Errors: as forward, InvalidArgument (a wrong magic), and InvalidUsage (training = 0).
 */
SEQPAR_API seqparResult_t seqparShortConvBackward(seqparShortConv_t conv, const seqparShortConvBackwardArgs_t* args,
                                                  void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SHORT_CONV_H_ */
