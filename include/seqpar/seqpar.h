/*
 * seqpar.h - collectives for sequence parallelism.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Conventions that hold for every function of this library unless its comment says otherwise:
 *
 *  - It returns a seqparResult_t and never throws, exits or prints (except through SEQPAR_DEBUG). On anything but
 *    seqparSuccess, seqparGetLastError() has a sentence that names the call, the argument, its value and what was
 *    expected.
 *  - Two errors are possible everywhere: InvalidArgument for a handle that was never made or is freed already, and for
 *    NULL in its place where that is not allowed; and SystemError where the library finds no memory for objects of its
 *    own.
 *  - Arguments are checked before anything is sent: a call that returns seqparInvalidArgument or seqparInvalidUsage for
 *    its own arguments has had no effect on any rank. It may be repeated, corrected.
 *    Where one rank alone is refused, the others have begun and wait for it, until it has repeated the call or the
 *    timeout has passed: a program that gives up after an error calls seqparCommAbort(), which ends their wait at once.
 *    On hosts, SEQPAR_DEBUG=WARN names on each rank that waits for more than a few seconds the call and whom it awaits.
 *  - "Collective" means: every rank of the communicator calls it, in the same order relative to its other collective
 *    calls, with arguments that agree as its comment says.
 *  - A communicator may be used by one thread at a time; different communicators may be used by different threads at
 *    the same time. seqparCommAbort() and seqparCommGetAsyncError() may be called at any time from any thread.
 *  - Buffers of a data type are aligned to its elements. Sizes are counted before anything is done: a product that
 *    overflows, a buffer of more than SEQPAR_MOST_BUFFER_BYTES, or one that is not aligned is InvalidArgument.
 *  - Pointers are to host memory on a host communicator (seqparCommDevice() gives SEQPAR_HOST_DEVICE), and to memory
 *    that the GPU can address on a device communicator: cudaMalloc's, managed or pinned. They need no registration.
 *  - The `stream` of a collective is a seqparStream_t on a host communicator, or NULL to run to completion in the call;
 *    on a device communicator it is a cudaStream_t of the communicator's device, or NULL for the default stream. There
 *    the call returns once the work is enqueued, and it may be captured into a CUDA graph that all ranks replay alike.
 *    Errors that kernels meet are seqparCommGetAsyncError()'s to tell; the outputs are then undefined.
 */
#ifndef SEQPAR_SEQPAR_H_
#define SEQPAR_SEQPAR_H_

#include "seqpar/scan.h"  /* IWYU pragma: export */
#include "seqpar/types.h" /* IWYU pragma: export */

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Communicators
 * -------------------------------------------------------------------------------------------------------------------
 */

/** The `device` of a communicator whose buffers are in host memory. */
#define SEQPAR_HOST_DEVICE (-1)
/** An integer field of a configuration that is left to its default. */
#define SEQPAR_CONFIG_UNDEF_INT (-2147483647 - 1)

/** How ranks reach each other. */
typedef enum {
  seqparTransportAuto = 0,   /**< load/store between ranks of one host where possible, messages otherwise */
  seqparTransportShared = 1, /**< only load/store through shared memory; ranks that cannot are an error at init */
  seqparTransportNetwork = 2 /**< only messages, also inside a host: for tests and for comparison */
} seqparTransport_t;

/**
 * Configuration of a communicator. Start from SEQPAR_CONFIG_INITIALIZER and change what is needed. The environment
 * variable named beside a field, where set, overrides the field. All ranks must give the same timeoutMs, transport and
 * checkArguments; `hostId` and `interfaceName` are each rank's own.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparConfig_t) of the caller's header */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE of the caller's header */
  /** Milliseconds after which a rank that does not answer is an error on every other rank; 0: never. Default 300000.
      SEQPAR_TIMEOUT (in seconds, fractions allowed). */
  int timeoutMs;
  /** A seqparTransport_t. SEQPAR_TRANSPORT=auto|shared|network. */
  int transport;
  /** SEQPAR_HOST_DEVICE (default), or the number of a CUDA device. */
  int device;
  /** 1: every collective compares its arguments between the ranks and names the ranks that differ (slow); 0: not. On a
      host communicator that is the first step of the operation, in stream order: a difference is seqparInvalidUsage of
      the call, or of its stream's synchronization, and the communicator stays. On a device communicator it happens
     beside the work, and a difference ends the communicator; seqparCommGetAsyncError() tells it. SEQPAR_CHECK=0|1. */
  int checkArguments;
  /** Ranks that give the same text are on one node. NULL: the host's name. At most 255 bytes. SEQPAR_HOSTID. */
  const char* hostId;
  /** The network interface for the control connections, e.g. "eth0". NULL: the one that routes to the peer.
      SEQPAR_SOCKET_IFNAME. */
  const char* interfaceName;
  /** On a GPU: the most CTAs (thread blocks) that a collective may use, 1 to 128. Default 128, of which exchanges join
      peers by 64 at most and MATRIX scans, whose blocks fill an SM, use 64 at most. All ranks give the same.
      SEQPAR_CTAS. */
  int ctas;
} seqparConfig_t;

#define SEQPAR_CONFIG_INITIALIZER                                                                                  \
  {                                                                                                                \
    sizeof(seqparConfig_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, SEQPAR_CONFIG_UNDEF_INT,                     \
        SEQPAR_CONFIG_UNDEF_INT, SEQPAR_CONFIG_UNDEF_INT, SEQPAR_CONFIG_UNDEF_INT, (const char*)0, (const char*)0, \
        SEQPAR_CONFIG_UNDEF_INT                                                                                    \
  }

#define SEQPAR_UNIQUE_ID_BYTES 128 /**< length of a seqparUniqueId */
/** Names a communicator that is being made: an address and a secret. Pass it to the ranks by any means, as plain bytes.
 */
typedef struct {
  char internal[SEQPAR_UNIQUE_ID_BYTES]; /**< the library's; without meaning for others */
} seqparUniqueId;

/**
 * Makes a new id and starts, in this process, the small server at which the ranks of the communicator meet. The process
 * must live until its communicator is made. An id serves for one communicator. The interface is SEQPAR_SOCKET_IFNAME's.
 * The server speaks plain TCP and accepts only connections that present the id's random 128-bit token: use it on
 * networks you trust. Errors: InvalidArgument (NULL), SystemError (no usable interface or no free port).
 */
SEQPAR_API seqparResult_t seqparGetUniqueId(seqparUniqueId* id);

/**
 * Collective over `nranks` callers with the same `id`: makes one communicator, this caller being `rank` of 0..nranks-1.
 * Connections are made and the link is measured here, so that no later call pays for them. Returns when all ranks have
 * arrived. Errors: InvalidArgument (NULL, rank or nranks out of range, an id that is none, a bad configuration),
 * SystemError, RemoteError (a rank did not arrive in time, or another version of the library answered).
 */
SEQPAR_API seqparResult_t seqparCommInitRank(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank);

/** seqparCommInitRank() with a configuration; NULL means all defaults. Errors: as seqparCommInitRank. */
SEQPAR_API seqparResult_t seqparCommInitRankConfig(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank,
                                                   const seqparConfig_t* config);

/**
 * seqparCommInitRankConfig() with rank, size and meeting place from the environment that torchrun and others set: RANK,
 * WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 listens at MASTER_PORT, or, where torchrun itself listens there
 * (TORCHELASTIC_USE_AGENT_STORE=True), at MASTER_PORT + 1; SEQPAR_BOOTSTRAP_PORT overrides either. The token is derived
 * from SEQPAR_BOOTSTRAP_TOKEN, or else from the address and TORCHELASTIC_RUN_ID, which is no secret. One communicator
 * at a time can be made this way; split it for more. Errors: as seqparCommInitRank; InvalidUsage (a variable is missing
 * or no number).
 */
SEQPAR_API seqparResult_t seqparCommInitEnv(seqparComm_t* comm, const seqparConfig_t* config);

/**
 * Makes a communicator of `nranks` ranks that are all in this process, for one thread a rank: comms[r] is rank r's.
 * `devices` names each rank's device; NULL: host memory. Blocking calls must be made by different threads.
 * Errors: as seqparCommInitRank.
 */
SEQPAR_API seqparResult_t seqparCommInitAll(seqparComm_t* comms, int nranks, const int* devices);

/**
 * An allgather that the caller brings, so that anything (MPI, a key-value store, sockets) can bootstrap a communicator.
 * Used during init only.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparOob_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int rank;         /**< this caller, 0..nranks-1 */
  int nranks;       /**< number of ranks */
  /** Gathers `bytes` bytes of every rank, in rank order, into `all` (nranks * bytes) on every rank, and returns 0; any
     other number is an error. Called by every rank in the same order with the same `bytes`. */
  int (*allgather)(const void* mine, void* all, size_t bytes, void* context);
  void* context; /**< passed to allgather */
} seqparOob_t;

#define SEQPAR_OOB_INITIALIZER \
  { sizeof(seqparOob_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 1, 0, (void*)0 }

/**
 * Collective over the ranks of an ncclComm_t, passed as a pointer so that this header needs no NCCL: makes a device
 * communicator with the same ranks on the same devices, which uses that NCCL communicator where GPUs do not reach each
 * other directly. It is borrowed: it must outlive the new communicator, must not be used by others at the same time,
 * and is neither destroyed nor aborted. config->device is ignored. Errors: as seqparCommInitRank; InvalidUsage (the
 * library was built without NCCL, or libnccl.so.2 is not there).
 */
SEQPAR_API seqparResult_t seqparCommInitNccl(seqparComm_t* comm, void* ncclComm, const seqparConfig_t* config);

/** Collective over the ranks of `oob`: makes a communicator. Errors: as seqparCommInitRank; RemoteError if oob fails.
 */
SEQPAR_API seqparResult_t seqparCommInitOob(seqparComm_t* comm, const seqparOob_t* oob, const seqparConfig_t* config);

/** The `color` of a rank that wants no part in any of the new communicators. */
#define SEQPAR_SPLIT_NOCOLOR (-1)

/**
 * Collective over `comm`: ranks with the same `color` >= 0 become one new communicator, ordered by `key` and then by
 * rank. *newcomm is NULL for SEQPAR_SPLIT_NOCOLOR. `config` NULL: the parent's. The parent stays usable and may be
 * destroyed first. Errors: InvalidArgument (color < -1, NULL), SystemError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommSplit(seqparComm_t comm, int color, int key, seqparComm_t* newcomm,
                                          const seqparConfig_t* config);

/**
 * Collective over `comm`: returns when all ranks have called it, of which enqueued work knows nothing. Between GPUs of
 * one process it belongs behind set-up, so that no rank's kernel waits for one that is still allocating memory or
 * loading kernels, which may wait for that kernel. Errors: InvalidArgument (NULL, no communicator), RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommBarrier(seqparComm_t comm);

#define SEQPAR_MOST_COMPARED 48 /**< the most arguments of a seqparCommCompare() */

/** What a seqparCompared_t is, and so how a difference is told. */
typedef enum {
  seqparComparedNumber = 0, /**< `number` */
  seqparComparedReal = 1,   /**< `real`; equal where its bits are */
  seqparComparedArray = 2   /**< `array` of `number` elements: told by its length, or the first element that differs */
} seqparComparedKind_t;

/** An argument of a seqparCommCompare(). */
typedef struct {
  const char* name; /**< what errors and records of calls name it: a string that lives as long as the communicator */
  int kind;         /**< a seqparComparedKind_t, the same on all ranks */
  int64_t number;   /**< NUMBER: the argument. ARRAY: how many elements it has */
  double real;      /**< REAL: the argument */
  const int64_t* array; /**< ARRAY: read during the call only; NULL where it has no elements */
} seqparCompared_t;

/**
 * Collective over `comm`, for calls of libraries and programs on top of this one: where ranks compare their arguments
 * (seqparConfig_t::checkArguments), compares arguments[count] between them and returns when all ranks have come;
 * elsewhere it returns at once. `call` (at most 39 bytes) is what errors name: a string that lives as long as `comm`.
 *
 * Errors: InvalidArgument (NULL, a count beyond SEQPAR_MOST_COMPARED, an unknown kind, an array of fewer than no
 * elements), InvalidUsage on every rank (arguments, or calls, that differ: which, and on which ranks; `comm` stays as
 * it is), RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommCompare(const char* call, const seqparCompared_t* arguments, int count,
                                            seqparComm_t comm);

/**
 * Collective over `comm`: waits until all ranks have called it and all enqueued work is done. Afterwards only
 * seqparCommDestroy() and the query functions may be called. Errors: InvalidArgument (no communicator), RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommFinalize(seqparComm_t comm);

/**
 * Frees `comm`: waits for its enqueued work, then for the other ranks to call it too (calls seqparCommFinalize() if
 * that was not done). On a communicator that has failed it waits for nobody. NULL is allowed and does nothing. The
 * handle is invalid afterwards whatever is returned. Errors: InvalidArgument (no communicator), RemoteError (the wait
 * for the others failed).
 */
SEQPAR_API seqparResult_t seqparCommDestroy(seqparComm_t comm);

/**
 * Ends `comm` at once and frees it: work under way on this rank returns seqparRemoteError, and so do all other ranks,
 * which learn of it. May be called from any thread, also while another thread is inside a call on `comm`; returns when
 * that thread has left the call. The handle is invalid afterwards. NULL is allowed. Errors: InvalidArgument (no
 * communicator).
 */
SEQPAR_API seqparResult_t seqparCommAbort(seqparComm_t comm);

/**
 * Stores the state of `comm`: seqparSuccess while it works; seqparRemoteError (or another error) once it is lost. An
 * error stays. Returns without waiting. Errors: InvalidArgument (NULL, no communicator).
 */
SEQPAR_API seqparResult_t seqparCommGetAsyncError(seqparComm_t comm, seqparResult_t* asyncError);

/** Stores the number of ranks. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommCount(seqparComm_t comm, int* count);
/** Stores this rank, from 0. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommUserRank(seqparComm_t comm, int* rank);
/** Stores SEQPAR_HOST_DEVICE or the CUDA device. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommDevice(seqparComm_t comm, int* device);

/** What seqparCommQuery() tells. Start from SEQPAR_COMM_INFO_INITIALIZER. */
typedef struct {
  size_t size;         /**< sizeof(seqparCommInfo_t) */
  unsigned magic;      /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;    /**< SEQPAR_VERSION_CODE */
  int rank;            /**< this rank */
  int nranks;          /**< number of ranks */
  int device;          /**< SEQPAR_HOST_DEVICE or a CUDA device */
  int nodes;           /**< number of different host ids */
  int node;            /**< the number of this rank's node, in order of first rank */
  int directPeers;     /**< peers reached by load and store */
  int networkPeers;    /**< peers reached by messages */
  double alphaUs;      /**< measured: one-way latency of an empty message, us (0 with one rank) */
  double bandwidth;    /**< measured: bytes a second of a pipelined hop between two ranks */
  double overheadUs;   /**< measured: cost of one more block in a pipeline, us */
  double contention;   /**< ranks of the fullest node for each of its processors, at least 1 */
  char transport[128]; /**< in words: what carries the data */
  char reason[512];    /**< in words: why no faster transport, and which GPUs were found */
  int sharing;         /**< ranks that are threads of this process and have this rank's GPU, itself too; 1 on hosts */
} seqparCommInfo_t;

#define SEQPAR_COMM_INFO_INITIALIZER \
  { sizeof(seqparCommInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0, 0., 0., 0., 0., "", "", 0 }

/** Fills `info`. Not collective. Errors: InvalidArgument (NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparCommQuery(seqparComm_t comm, seqparCommInfo_t* info);

/* ---------------------------------------------------------------------------------------------------------------------
 * Memory
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * Allocates `bytes` of memory of the kind that `comm` works on, aligned to 4096 and not initialized. Any memory may be
 * given to the collectives; this one is placed on large pages where the system allows it. bytes = 0 gives NULL. Errors:
 * InvalidArgument (NULL), SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparMemAlloc(void** pointer, size_t bytes, seqparComm_t comm);

/** Frees memory of seqparMemAlloc(); NULL is allowed. Errors: InvalidArgument (not from seqparMemAlloc). */
SEQPAR_API seqparResult_t seqparMemFree(void* pointer);

/* ---------------------------------------------------------------------------------------------------------------------
 * Host streams and events
 *
 * Work enqueued on one stream runs in order on the stream's own thread, beside the caller. Every collective takes a
 * stream as its last argument: on a host communicator a seqparStream_t, or NULL to run to completion in the call.
 * Collectives of one communicator run in the order in which they were called, also when given different streams.
 *
 * seqparStreamSynchronize() alone tells errors of enqueued work. Streams go on behind work that has failed, so that
 * their events pass and they become idle.
 * -------------------------------------------------------------------------------------------------------------------
 */

/** Makes a stream, with its thread. Errors: InvalidArgument (NULL), SystemError (no thread). */
SEQPAR_API seqparResult_t seqparStreamCreate(seqparStream_t* stream);
/** Waits for the stream's work, then frees it. Errors of the work that seqparStreamSynchronize() has not told are lost.
 * NULL is allowed. Errors: InvalidArgument (no stream). */
SEQPAR_API seqparResult_t seqparStreamDestroy(seqparStream_t stream);
/** Waits for all work enqueued so far. Returns the first error of work since the last call, and forgets it. Errors:
 * InvalidArgument (no stream), those of the collectives that were enqueued. */
SEQPAR_API seqparResult_t seqparStreamSynchronize(seqparStream_t stream);
/** seqparSuccess if the stream is idle, seqparInProgress if not. Errors: InvalidArgument (no stream). */
SEQPAR_API seqparResult_t seqparStreamQuery(seqparStream_t stream);
/** Enqueues a call of function(argument). It must not call into this library on the same stream, and must not throw.
 * Errors: InvalidArgument (no stream, `function` NULL). */
SEQPAR_API seqparResult_t seqparStreamLaunch(seqparStream_t stream, void (*function)(void*), void* argument);

/** Makes an event that is not recorded yet. Errors: InvalidArgument (NULL). */
SEQPAR_API seqparResult_t seqparEventCreate(seqparEvent_t* event);
/** Frees an event; work that waits for it is not affected. NULL is allowed. Errors: InvalidArgument (no event). */
SEQPAR_API seqparResult_t seqparEventDestroy(seqparEvent_t event);
/** Marks the point that `stream` has reached with all its work so far. A later record replaces it. Errors:
 * InvalidArgument (no event, no stream). */
SEQPAR_API seqparResult_t seqparEventRecord(seqparEvent_t event, seqparStream_t stream);
/** Later work of `stream` waits for the event's latest record (for nothing, if there was none). Errors: InvalidArgument
 * (no stream, no event). */
SEQPAR_API seqparResult_t seqparStreamWaitEvent(seqparStream_t stream, seqparEvent_t event);
/** Waits in the caller for the event's latest record (for nothing, if there was none). Errors: InvalidArgument (no
 * event). */
SEQPAR_API seqparResult_t seqparEventSynchronize(seqparEvent_t event);
/** seqparSuccess if the event's latest record has passed (or there was none), else seqparInProgress. Errors:
 * InvalidArgument (no event). */
SEQPAR_API seqparResult_t seqparEventQuery(seqparEvent_t event);
/** Stores the milliseconds between two passed records. Errors: InvalidArgument (NULL, no event), InvalidUsage (not
 * recorded), InProgress (not passed). */
SEQPAR_API seqparResult_t seqparEventElapsedTime(float* milliseconds, seqparEvent_t start, seqparEvent_t end);

/* ---------------------------------------------------------------------------------------------------------------------
 * Send and receive
 * -------------------------------------------------------------------------------------------------------------------
 */

/** In place of a peer: nothing is sent, or nothing is received. */
#define SEQPAR_NO_PEER (-1)

/**
 * Sends sendBytes bytes to rank `sendPeer` while receiving receiveBytes bytes from rank `receivePeer`; either may be
 * SEQPAR_NO_PEER. Both directions progress together, so rings and exchanges cannot deadlock. Every send is met by the
 * peer's receive in the order of the calls, with the same number of bytes. Sending to oneself is allowed if both peers
 * are oneself. The buffers must not overlap. The send buffer must stay unchanged, and the receive buffer
 * unread, until the work is done on `stream`; a large send is done only when the receiver has taken it. Errors:
 * InvalidArgument (NULL with bytes > 0, a peer out of range, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparSendRecv(const void* sendBuffer, size_t sendBytes, int sendPeer, void* receiveBuffer,
                                         size_t receiveBytes, int receivePeer, seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SEQPAR_H_ */
