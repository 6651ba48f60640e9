/*
 * seqpar/types.h - common definitions of all headers: version, results, handles, data types. Programs include seqpar.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SEQPAR_TYPES_H_
#define SEQPAR_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Version. The build system reads these macros; the version is defined nowhere else.
 * ---------------------------------------------------------------------------------------------------------------------
 */
#define SEQPAR_VERSION_MAJOR 0
#define SEQPAR_VERSION_MINOR 2
#define SEQPAR_VERSION_PATCH 0
/** Comparable version number: major * 10000 + minor * 100 + patch. */
#define SEQPAR_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define SEQPAR_VERSION_CODE SEQPAR_VERSION(SEQPAR_VERSION_MAJOR, SEQPAR_VERSION_MINOR, SEQPAR_VERSION_PATCH)

#if defined(__GNUC__)
#define SEQPAR_API __attribute__((visibility("default")))
#else
#define SEQPAR_API
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Results
 * -------------------------------------------------------------------------------------------------------------------
 */

/** Result of a call. The values are part of the ABI and agree with NCCL's. */
typedef enum {
  seqparSuccess = 0,            /**< completed, or enqueued on the given stream */
  seqparUnhandledCudaError = 1, /**< a CUDA call failed */
  seqparSystemError = 2,     /**< the operating system or a network library refused something: memory, sockets, files */
  seqparInternalError = 3,   /**< a defect of the library; please report it */
  seqparInvalidArgument = 4, /**< an argument is invalid */
  seqparInvalidUsage = 5,    /**< the arguments are valid, but the call is not allowed here or now */
  seqparRemoteError = 6,     /**< another rank failed, left, or did not answer in time; the communicator is lost */
  seqparInProgress = 7       /**< not finished yet */
} seqparResult_t;

/** A constant English phrase for `result`; "unknown result" for an unknown value. Never NULL. */
SEQPAR_API const char* seqparGetErrorString(seqparResult_t result);

typedef struct seqparComm* seqparComm_t;     /**< a communicator: one rank's membership in a group of ranks */
typedef struct seqparStream* seqparStream_t; /**< a host stream: an in-order queue of work with its own thread */
typedef struct seqparEvent* seqparEvent_t;   /**< a point in a host stream */

/**
 * The text of the latest error of `comm`, including errors of work on a stream; with NULL, of the latest failed call of
 * the calling thread. An empty string if there was none. The text is valid until the calling thread's next call with
 * the same `comm`. Never NULL.
 */
SEQPAR_API const char* seqparGetLastError(seqparComm_t comm);

/** Stores SEQPAR_VERSION_CODE of the loaded library. Errors: InvalidArgument (NULL). */
SEQPAR_API seqparResult_t seqparGetVersion(int* version);

/* ---------------------------------------------------------------------------------------------------------------------
 * Data types
 * -------------------------------------------------------------------------------------------------------------------
 */

typedef enum {
  seqparFloat32 = 0, /**< IEEE binary32 */
  seqparFloat16 = 1, /**< IEEE binary16 */
  seqparBfloat16 = 2 /**< upper half of binary32; conversions round to nearest even */
} seqparDataType_t;  /**< the type of the elements of a buffer */

/**
 * Maximum size of a buffer in any call, larger than an address space. A larger buffer, or one that wraps around the
 * last address, is InvalidArgument.
 */
#define SEQPAR_MOST_BUFFER_BYTES ((uint64_t)1 << 48)

/** Second field of every structure of this interface; set by its INITIALIZER. */
#define SEQPAR_STRUCT_MAGIC 0x53514152u

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_TYPES_H_ */
