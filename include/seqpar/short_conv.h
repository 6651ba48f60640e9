/*
 * seqpar/short_conv.h - the short convolution before a layer of linear attention, over a sequence that is sharded
 * across ranks. Library: libseqpar_attn.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply; seqparAttnGetLastError() of attn.h returns the text of an error.
 */
#ifndef SEQPAR_SHORT_CONV_H_
#define SEQPAR_SHORT_CONV_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct seqparShortConv* seqparShortConv_t; /**< one convolution on one communicator, with its workspace */

#define SEQPAR_SHORT_CONV_WIDTH 8 /**< maximum length of the kernel */

/**
 * A causal convolution over tokens, per channel, as before the layers of Mamba, GLA and DeltaNet:
 *
 *     z_t = bias + sum over j = 0 ... width-1 of weight[width-1-j] x_(t-j)          y_t = z_t, or z_t / (1 + exp(-z_t))
 *
 * with x = 0 before the start of a sequence. Start from SEQPAR_SHORT_CONV_INITIALIZER. All ranks pass the same values.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparShortConvDesc_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int64_t batch;    /**< sequences of equal length, at least 1; 1 with packed sequences */
  int64_t tokens;   /**< tokens of the whole sequence, over all ranks, 0 or more, sharded like seqparContiguous. Not
                         read with `tokensOfRanks` */
  const int64_t* tokensOfRanks; /**< [ranks]: contiguous shards of these lengths; NULL: see `tokens` */
  int64_t sequences;            /**< number of packed sequences; 0: the tokens are one sequence */
  const int64_t* cuSeqlens;     /**< [sequences + 1]: start of each in the whole, ascending from 0 to the number of
                                     tokens */
  int64_t channels;             /**< at least 1 */
  int width;                    /**< length of the kernel, 1 to SEQPAR_SHORT_CONV_WIDTH */
  int silu;                     /**< 1: SiLU after the convolution; 0: none */
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
 * Collective over `comm`: creates a convolution and allocates its memory, host or GPU like the communicator's. Sends
 * nothing except the comparison of seqparConfig_t::checkArguments. Pointers of `desc` are read during the call only.
 * With comm NULL the caller has the whole sequence, on host memory. The communicator must outlive the convolution.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, a value out of range, a packing that does not ascend or end at the
 * number of tokens), InvalidUsage (a GPU communicator with a library that was built without CUDA; descriptions that
 * differ between ranks), SystemError (no memory), UnhandledCudaError.
 */
SEQPAR_API seqparResult_t seqparShortConvCreate(seqparShortConv_t* conv, const seqparShortConvDesc_t* desc,
                                                seqparComm_t comm);

/** Frees a convolution after its enqueued work. Collective like Create. NULL has no effect. Errors: InvalidArgument. */
SEQPAR_API seqparResult_t seqparShortConvDestroy(seqparShortConv_t conv);

/**
 * Forward pass; collective. The width-1 tokens before the shard are received from the ranks that hold them
 * (seqparHaloExchange()), concurrently with the work on the other tokens.
 *
 *   x, y     [batch][local tokens][channels] of dataType, dense; y is out and does not overlap x
 *   weight   [channels][width] of weightType; the last element of a channel multiplies the token itself
 *   bias     [channels] of weightType; NULL: zeros
 *
 * `stream` is a seqparStream_t, or NULL to run to completion in the call; on GPUs a cudaStream_t. Inputs must stay
 * unchanged, and outputs unread, until the work is done. Empty shards may be NULL. One call of a convolution runs at a
 * time.
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
  void* dx;           /**< out, complete gradient of x: the contributions of later ranks' tokens are received from
                           them */
  float* dWeight;     /**< [channels][width], out: contribution of this rank's tokens; the gradient is the sum over
                           the ranks. NULL: not computed */
  float* dBias;       /**< [channels], out: like dWeight. NULL: not computed */
} seqparShortConvBackwardArgs_t;

#define SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER                                                                     \
  {                                                                                                                \
    sizeof(seqparShortConvBackwardArgs_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL                                                                                                 \
  }

/**
 * Backward pass; collective. Recomputes intermediate results of the forward pass. `args` is read during the call;
 * conditions as for the forward pass. Errors: as forward, InvalidArgument (a wrong magic), and InvalidUsage (training =
 * 0).
 */
SEQPAR_API seqparResult_t seqparShortConvBackward(seqparShortConv_t conv, const seqparShortConvBackwardArgs_t* args,
                                                  void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SHORT_CONV_H_ */
