/*
 * seqpar/scan_device.h - All-Scan from inside kernels: the host's part. Kernels use seqpar_device.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SEQPAR_SCAN_DEVICE_H_
#define SEQPAR_SCAN_DEVICE_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A scan whose heads kernels of the caller pass along themselves, one by one. Made by seqparScanDeviceCreate(), given
 * to kernels by value. The fields up to `positions` may be read.
 */
typedef struct {
  size_t size;                    /**< sizeof(seqparScanDevice_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int64_t heads;                  /**< number of heads */
  int64_t elements;               /**< fp32 numbers of a head's state, dk * dv */
  int32_t position;               /**< of this rank in the scan */
  int32_t positions;              /**< number of ranks */
  int32_t before, after;          /**< the library's from here on: the peers to receive from and send to */
  void *inbox, *outbox;           /**< packets from `before`; packets to `after`, in its memory */
  void *creditIn, *creditOut;     /**< heads that `after` has taken; heads taken from `before`, in its memory */
  void* counts;                   /**< heads received and sent */
  void *abortWord, *timedOutWord; /**< set by the host when the communicator fails; by kernels whose wait timed out */
  uint64_t timeoutNs;             /**< of a wait; 0: none */
  void* owner;                    /**< NULL: the handle is not in use */
} seqparScanDevice_t;

#define SEQPAR_SCAN_DEVICE_INITIALIZER                                                                          \
  {                                                                                                             \
    sizeof(seqparScanDevice_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, (void*)0, (void*)0, \
        (void*)0, (void*)0, (void*)0, (void*)0, (void*)0, 0, (void*)0                                           \
  }

/**
 * Collective over `comm`, whose buffers are in device memory and whose ranks all reach each other by load and store
 * (seqparCommQuery() gives the reason where they do not): prepares scans of `heads` states of `elements` fp32 numbers
 * each in `direction`, a seqparDirection_t. All ranks give the same numbers. It takes device memory for two states of
 * all heads on every rank, and waits until all ranks have it. `scan` starts as SEQPAR_SCAN_DEVICE_INITIALIZER.
 *
 * Kernels that use the handle may follow each other, also in CUDA graphs that are replayed; those of one handle on one
 * rank must not overlap. Every rank takes and passes on every head once in each scan. When a rank fails or does not
 * answer within the communicator's timeout, kernels that wait for it give up and the communicator fails as it does for
 * a collective.
 *
 * Ranks that share a GPU: a kernel of one waits for a kernel of another, so all blocks of all of them must fit on the
 * GPU at once, beside whatever else runs there, and nothing in between may wait for the whole device: load kernels
 * before (CUDA_MODULE_LOADING=EAGER), and allocate and free memory (cudaMalloc, cudaFree and their like wait) before
 * the first rank launches and after the last one's kernel is done. As each head takes a block or a part of one, `heads`
 * times the ranks of this process on the GPU may be no more than the blocks that the GPU can hold.
 *
 * Source: ZeCO (arXiv 2507.01004), All-Scan, with a head for a block.
 *
 * Errors: InvalidArgument (NULL, a wrong magic, another size than the library's, heads or elements below 1 or
 * overflowing, an unknown direction), InvalidUsage (a host communicator, ranks that are out of reach, more heads of
 * ranks that share a GPU than it holds blocks; on all ranks alike), SystemError (no memory), RemoteError.
 */
SEQPAR_API seqparResult_t seqparScanDeviceCreate(seqparScanDevice_t* scan, int64_t heads, int64_t elements,
                                                 int direction, seqparComm_t comm);

/**
 * Gives back what seqparScanDeviceCreate() took to the communicator, which keeps it for the next handle or ring, and
 * resets `scan` to its initializer. Not collective; waits for nothing. No kernel may use the handle any more, and the
 * communicator must still exist. Errors: InvalidArgument (NULL, a wrong magic, a handle that is not in use).
 */
SEQPAR_API seqparResult_t seqparScanDeviceDestroy(seqparScanDevice_t* scan);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SCAN_DEVICE_H_ */
