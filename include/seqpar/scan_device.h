/*
 * seqpar/scan_device.h - All-Scan inside the caller's kernels: host functions. Kernels use seqpar_device.cuh.
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
 * A scan for kernels of the caller, which pass each head to the next rank themselves. Created by
 * seqparScanDeviceCreate(), passed to kernels by value. The fields up to `positions` may be read.
 */
typedef struct {
  size_t size;                    /**< sizeof(seqparScanDevice_t) */
  unsigned magic;                 /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;               /**< SEQPAR_VERSION_CODE */
  int64_t heads;                  /**< number of heads */
  int64_t elements;               /**< fp32 elements of a head's state, dk * dv */
  int32_t position;               /**< position of this rank in the scan */
  int32_t positions;              /**< number of ranks */
  int32_t before, after;          /**< internal from here on: the peers to receive from and to send to */
  void *inbox, *outbox;           /**< packets from `before`; packets to `after`, in its memory */
  void *creditIn, *creditOut;     /**< heads that `after` has consumed; heads consumed from `before`, in its memory */
  void* counts;                   /**< heads received and sent */
  void *abortWord, *timedOutWord; /**< set by the host when the communicator fails; set by kernels on a timeout */
  uint64_t timeoutNs;             /**< timeout of a wait; 0: none */
  void* owner;                    /**< NULL: the handle is not in use */
} seqparScanDevice_t;

#define SEQPAR_SCAN_DEVICE_INITIALIZER                                                                          \
  {                                                                                                             \
    sizeof(seqparScanDevice_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, (void*)0, (void*)0, \
        (void*)0, (void*)0, (void*)0, (void*)0, (void*)0, 0, (void*)0                                           \
  }

/**
 * Collective over `comm`, a device communicator with load and store access between all ranks (seqparCommQuery() returns
 * the reason if there is none): prepares scans of `heads` states of `elements` fp32 elements each in `direction`, a
 * seqparDirection_t. All ranks pass the same values. Allocates device memory for two states of all heads on every rank,
 * and waits until all ranks have allocated it. `scan` must be SEQPAR_SCAN_DEVICE_INITIALIZER.
 *
 * Kernels that use the handle may follow each other, also in replayed CUDA graphs; kernels of one handle on one rank
 * must not overlap. Every rank receives and forwards every head once in each scan. If a rank fails or does not respond
 * within the communicator's timeout, waiting kernels exit and the communicator fails as in a collective.
 *
 * Ranks that share a GPU: kernels of one rank wait for kernels of another, so all their blocks must be resident at the
 * same time, together with other work on the GPU, and no operation may wait for the whole device: load kernels before
 * (CUDA_MODULE_LOADING=EAGER), and allocate and free memory (cudaMalloc, cudaFree and similar calls wait) before the
 * first rank launches or after the last kernel is done. Each head needs a block or a part of one, so `heads` times the
 * number of ranks of this process on the GPU must not exceed the GPU's number of resident blocks.
 *
 * Source: ZeCO (arXiv 2507.01004), All-Scan, with a head as a block.
 *
 * Errors: InvalidArgument (NULL, a wrong magic or size, heads or elements below 1 or overflowing, an unknown
 * direction), InvalidUsage (a host communicator, ranks without load and store access, too many heads on a shared GPU;
 * on all ranks), SystemError (no memory), RemoteError.
 */
SEQPAR_API seqparResult_t seqparScanDeviceCreate(seqparScanDevice_t* scan, int64_t heads, int64_t elements,
                                                 int direction, seqparComm_t comm);

/**
 * Returns the resources of seqparScanDeviceCreate() to the communicator, which reuses them for the next handle or ring,
 * and resets `scan` to its initializer. Not collective; does not wait. No kernel may still use the handle, and the
 * communicator must exist. Errors: InvalidArgument (NULL, a wrong magic, a handle that is not in use).
 */
SEQPAR_API seqparResult_t seqparScanDeviceDestroy(seqparScanDevice_t* scan);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SCAN_DEVICE_H_ */
