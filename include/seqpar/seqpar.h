/*
 * seqpar.h - collectives for sequence parallelism.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Conventions of every function of this library, unless its comment states otherwise:
 *
 * - It returns a seqparResult_t and never throws, exits or prints (except through SEQPAR_DEBUG). After any result
 *   except seqparSuccess, seqparGetLastError() returns a sentence that names the call, the argument, its value and the
 *   expected value.
 * - Every function can return InvalidArgument for a handle that was never created or was already freed, and for NULL
 *   where it is not allowed; and SystemError if the library cannot allocate its own objects.
 * - Arguments are checked before anything is sent: a call that returns seqparInvalidArgument or seqparInvalidUsage for
 *   its own arguments has had no effect on any rank and can be repeated with correct arguments. If one rank only is
 *   refused, the other ranks wait for it until it repeats the call or the timeout passes: a program that gives up calls
 *   seqparCommAbort(), which ends their wait immediately. On hosts, SEQPAR_DEBUG=WARN prints the call and the awaited
 *   rank on each rank that waits for more than a few seconds.
 * - "Collective" means: every rank of the communicator calls it, in the same order relative to its other collective
 *   calls, with matching arguments as its comment specifies.
 * - A communicator may be used by one thread at a time; different threads may use different communicators concurrently.
 *   seqparCommAbort() and seqparCommGetAsyncError() may be called at any time from any thread.
 * - Buffers are aligned to the elements of their data type. Sizes are computed before anything else: a product that
 *   overflows, a buffer of more than SEQPAR_MOST_BUFFER_BYTES, or a misaligned buffer is InvalidArgument.
 * - Pointers are to host memory on a host communicator (seqparCommDevice() returns SEQPAR_HOST_DEVICE), and to memory
 *   that the GPU can address on a device communicator: cudaMalloc's, managed or pinned. They need no registration.
 * - The `stream` of a collective is a seqparStream_t on a host communicator, or NULL to run to completion in the call;
 *   on a device communicator it is a cudaStream_t of the communicator's device, or NULL for the default stream. Device
 *   calls return once the work is enqueued, and can be captured into a CUDA graph that all ranks replay in the same
 *   order, if each has its own GPU. After a stream is synchronized, seqparCommGetAsyncError() returns the errors of its
 *   kernels; the outputs are then undefined.
 */
#ifndef SEQPAR_SEQPAR_H_
#define SEQPAR_SEQPAR_H_

#include "seqpar/scan.h"   /* IWYU pragma: export */
#include "seqpar/stream.h" /* IWYU pragma: export */
#include "seqpar/types.h"  /* IWYU pragma: export */

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Communicators
 * -------------------------------------------------------------------------------------------------------------------
 */

/** The `device` of a communicator with buffers in host memory. */
#define SEQPAR_HOST_DEVICE (-1)
/** Default value of an integer field of a configuration. */
#define SEQPAR_CONFIG_UNDEF_INT (-2147483647 - 1)

/** Transport between ranks. */
typedef enum {
  seqparTransportAuto = 0,   /**< load and store between ranks of one host where possible, messages otherwise */
  seqparTransportShared = 1, /**< load and store through shared memory only; init fails if a rank cannot */
  seqparTransportNetwork = 2 /**< messages only, also inside a host: for tests and comparison */
} seqparTransport_t;

/**
 * Configuration of a communicator. Start from SEQPAR_CONFIG_INITIALIZER. An environment variable that a field's comment
 * names overrides the field. All ranks must pass the same timeoutMs, transport and checkArguments; `hostId` and
 * `interfaceName` may differ between ranks.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparConfig_t) of the caller's header */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE of the caller's header */
  /** Maximum wait for another rank in milliseconds, then the call fails on every waiting rank; 0: no limit. Default
      300000. SEQPAR_TIMEOUT (in seconds, fractions allowed). */
  int timeoutMs;
  /** A seqparTransport_t. SEQPAR_TRANSPORT=auto|shared|network. */
  int transport;
  /** SEQPAR_HOST_DEVICE (default), or a CUDA device index. */
  int device;
  /** 1: every collective compares its arguments between the ranks and reports the ranks that differ (slow); 0: no
      comparison. On a host communicator the comparison is the first step of the operation, in stream order: a
      difference is seqparInvalidUsage of the call, or of its stream's synchronization, and the communicator stays
      usable. On a device communicator it runs concurrently with the work, and a difference ends the communicator;
      seqparCommGetAsyncError() returns it. Threads that call one communicator concurrently end it with InvalidUsage.
      SEQPAR_CHECK=0|1. */
  int checkArguments;
  /** Ranks with the same text are on one node. NULL: the host's name. At most 255 bytes. SEQPAR_HOSTID. */
  const char* hostId;
  /** The network interface of the control connections, for example "eth0". NULL: the interface that routes to the peer.
      SEQPAR_SOCKET_IFNAME. */
  const char* interfaceName;
  /** On a GPU: the maximum number of CTAs (thread blocks) of a collective, 1 to 128. Default 128; exchanges use at most
      64 per pair of peers, and MATRIX scans, with one block per SM, at most 64. Equal on all ranks. SEQPAR_CTAS. */
  int ctas;
} seqparConfig_t;

#define SEQPAR_CONFIG_INITIALIZER                                                                                  \
  {                                                                                                                \
    sizeof(seqparConfig_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, SEQPAR_CONFIG_UNDEF_INT,                     \
        SEQPAR_CONFIG_UNDEF_INT, SEQPAR_CONFIG_UNDEF_INT, SEQPAR_CONFIG_UNDEF_INT, (const char*)0, (const char*)0, \
        SEQPAR_CONFIG_UNDEF_INT                                                                                    \
  }

#define SEQPAR_UNIQUE_ID_BYTES 128 /**< size of a seqparUniqueId */
/**
 * Identifies a communicator during its creation: an address and a secret. Send it to the ranks by any means, as plain
 * bytes.
 */
typedef struct {
  char internal[SEQPAR_UNIQUE_ID_BYTES]; /**< opaque */
} seqparUniqueId;

/**
 * Creates an id and starts, in this process, the small TCP server to which the ranks of the communicator connect. The
 * process must live until its communicator is created. An id is valid for one communicator. SEQPAR_SOCKET_IFNAME
 * selects the interface. The server uses plain TCP and accepts only connections that prove, without sending it, that
 * they know the id's random 128-bit secret: keep the id secret, and use trusted networks. Errors: InvalidArgument
 * (NULL), SystemError (no usable interface or no free port).
 */
SEQPAR_API seqparResult_t seqparGetUniqueId(seqparUniqueId* id);

/**
 * Collective over `nranks` callers with the same `id`: creates a communicator; this caller is `rank`, 0..nranks-1.
 * Connections are created and links are measured here, so later calls have no setup cost. Returns when all ranks have
 * connected. Errors: InvalidArgument (NULL, rank or nranks out of range, an invalid id, a bad configuration),
 * SystemError, RemoteError (a rank did not connect in time, or another version of the library answered).
 */
SEQPAR_API seqparResult_t seqparCommInitRank(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank);

/** seqparCommInitRank() with a configuration; NULL: all defaults. Errors: as seqparCommInitRank. */
SEQPAR_API seqparResult_t seqparCommInitRankConfig(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank,
                                                   const seqparConfig_t* config);

/**
 * seqparCommInitRankConfig() with rank, size and address from the environment of torchrun and similar launchers: RANK,
 * WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 listens on MASTER_PORT, or, if torchrun itself listens there
 * (TORCHELASTIC_USE_AGENT_STORE=True), on MASTER_PORT + 1; SEQPAR_BOOTSTRAP_PORT overrides both. The token is derived
 * from SEQPAR_BOOTSTRAP_TOKEN, otherwise from the address and TORCHELASTIC_RUN_ID, which are not secret. One
 * communicator at a time can be created in this way; split it for more. Errors: as seqparCommInitRank; InvalidUsage (a
 * variable is missing or not a number).
 */
SEQPAR_API seqparResult_t seqparCommInitEnv(seqparComm_t* comm, const seqparConfig_t* config);

/**
 * Creates a communicator of `nranks` ranks in this process, one thread per rank: comms[r] belongs to rank r. `devices`
 * contains each rank's device; NULL: host memory. Different threads must run blocking calls. Errors: as
 * seqparCommInitRank.
 */
SEQPAR_API seqparResult_t seqparCommInitAll(seqparComm_t* comms, int nranks, const int* devices);

/**
 * The caller's allgather, so that MPI, a key-value store or sockets can bootstrap a communicator. Used during init
 * only.
 */
typedef struct {
  size_t size;      /**< sizeof(seqparOob_t) */
  unsigned magic;   /**< SEQPAR_STRUCT_MAGIC */
  unsigned version; /**< SEQPAR_VERSION_CODE */
  int rank;         /**< this caller, 0..nranks-1 */
  int nranks;       /**< number of ranks */
  /** Gathers `bytes` bytes of every rank, in rank order, into `all` (nranks * bytes) on every rank, and returns 0, or
      another value on error. Called by every rank in the same order with the same `bytes`. */
  int (*allgather)(const void* mine, void* all, size_t bytes, void* context);
  void* context; /**< passed to allgather */
} seqparOob_t;

#define SEQPAR_OOB_INITIALIZER \
  { sizeof(seqparOob_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 1, 0, (void*)0 }

/**
 * Collective over the ranks of an ncclComm_t, passed as a pointer so that this header does not need NCCL: creates a
 * device communicator with the same ranks on the same devices. It uses that NCCL communicator between GPUs that cannot
 * map each other's memory. The NCCL communicator is borrowed: it must outlive the new one, must not be used
 * concurrently by others, and is neither destroyed nor aborted. config->device is ignored. Errors: as
 * seqparCommInitRank; InvalidUsage (the library was built without NCCL, or libnccl.so.2 was not found).
 */
SEQPAR_API seqparResult_t seqparCommInitNccl(seqparComm_t* comm, void* ncclComm, const seqparConfig_t* config);

/**
 * Collective over the ranks of `oob`: creates a communicator. Errors: as seqparCommInitRank; RemoteError if oob fails.
 */
SEQPAR_API seqparResult_t seqparCommInitOob(seqparComm_t* comm, const seqparOob_t* oob, const seqparConfig_t* config);

/** The `color` of a rank that joins none of the new communicators. */
#define SEQPAR_SPLIT_NOCOLOR (-1)

/**
 * Collective over `comm`: ranks with the same `color` >= 0 form one new communicator, ordered by `key` and then by
 * rank. *newcomm is NULL for SEQPAR_SPLIT_NOCOLOR. `config` NULL: the parent's. The parent stays usable and may be
 * destroyed first. Errors: InvalidArgument (color < -1, NULL), SystemError, RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommSplit(seqparComm_t comm, int color, int key, seqparComm_t* newcomm,
                                          const seqparConfig_t* config);

/**
 * Collective over `comm`: returns when all ranks have called it. Enqueued work is not affected. Between GPUs of one
 * process, call it after setup, so that no rank's kernel waits for a rank that is still allocating memory or loading
 * kernels, which may in turn wait for that kernel. Errors: InvalidArgument (NULL, no communicator), RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommBarrier(seqparComm_t comm);

#define SEQPAR_MOST_COMPARED 48 /**< maximum number of arguments of seqparCommCompare() */

/** Type of a seqparCompared_t; it determines the report of a difference. */
typedef enum {
  seqparComparedNumber = 0, /**< `number` */
  seqparComparedReal = 1,   /**< `real`; equal if its bits are equal */
  seqparComparedArray =
      2 /**< `array` of `number` elements: the report contains its length, or the first element that differs */
} seqparComparedKind_t;

/** An argument of a seqparCommCompare(). */
typedef struct {
  const char* name;     /**< name in errors and records: a string that lives as long as the communicator */
  int kind;             /**< a seqparComparedKind_t, the same on all ranks */
  int64_t number;       /**< NUMBER: the argument. ARRAY: number of elements */
  double real;          /**< REAL: the argument */
  const int64_t* array; /**< ARRAY: read during the call only; NULL if it is empty */
} seqparCompared_t;

/**
 * Collective over `comm`, for libraries and programs that use this one. If ranks compare their arguments
 * (seqparConfig_t::checkArguments), compares arguments[count] between them and returns when all ranks have called it;
 * otherwise it returns immediately. `call` (at most 39 bytes) is the name in errors: a string that lives as long as
 * `comm`.
 *
 * Errors: InvalidArgument (NULL, a count above SEQPAR_MOST_COMPARED, an unknown kind, an array of negative length),
 * InvalidUsage on every rank (arguments or calls differ: the text names them and the ranks; `comm` is unchanged),
 * RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommCompare(const char* call, const seqparCompared_t* arguments, int count,
                                            seqparComm_t comm);

/**
 * For programs and libraries with their own argument checks: the calls of this rank on `comm` until the next
 * seqparCommNextCall() are one call of the program. All ranks use it in the same way. Returns without waiting and sends
 * nothing. Errors: InvalidArgument (no communicator).
 */
SEQPAR_API seqparResult_t seqparCommNextCall(seqparComm_t comm);

/**
 * Notifies the other ranks that this rank does not run, or did not finish, the call that follows its latest
 * communication; `why` (up to 4096 bytes) is the reason. Returns without waiting.
 *
 * Ranks that refuse the same call are not affected: `comm` stays usable on all of them. A rank that communicates in
 * that call, or in a later one, returns seqparRemoteError within milliseconds, with this rank's name and `why` in its
 * text; `comm` is then lost on all ranks. The decision does not depend on time: ranks compare the numbers of refusals
 * and of calls (seqparCommNextCall()) with communication. With one rank it has no effect. May be called from any
 * thread. Errors: InvalidArgument (no communicator, NULL), InvalidUsage (a finalized communicator), or the error of a
 * lost one.
 */
SEQPAR_API seqparResult_t seqparCommRefuseCall(seqparComm_t comm, const char* why);

/**
 * Ends `comm` on all ranks like seqparCommAbort(), but keeps the handle: active and later calls return
 * seqparRemoteError with this rank and `why` in their text. May be called from any thread; returns without waiting. A
 * communicator that is already lost keeps its first error. Errors: InvalidArgument (no communicator, NULL).
 */
SEQPAR_API seqparResult_t seqparCommFail(seqparComm_t comm, const char* why);

/**
 * Collective over `comm`, for calls of libraries on top of this one: until seqparCommCallEnd(), the calling thread's
 * calls on `comm` are parts of `call`. Errors of waits and lines of SEQPAR_DEBUG=WARN name `call`, and flight records
 * contain it. If ranks compare their arguments (seqparConfig_t::checkArguments), they compare `call` and
 * arguments[count], as in seqparCommCompare(), without waiting for each other here:
 *
 *  - on a host communicator in an operation of its own on `stream`. If the ranks differ, this operation and all parts
 *    are InvalidUsage and send nothing, and `comm` stays usable. With `stream` NULL this call returns the difference,
 *    and the caller must not call the parts;
 *  - on a device communicator concurrently with the work. A difference ends `comm`.
 *
 * Without that comparison, messages of the parts on a host communicator still carry a digest of `call` and the
 * arguments: a part that receives another call's message is InternalError.
 *
 * Errors: as seqparCommCompare, InvalidArgument (no stream).
 */
SEQPAR_API seqparResult_t seqparCommCallBegin(const char* call, const seqparCompared_t* arguments, int count,
                                              seqparComm_t comm, void* stream);
/** Ends the calling thread's seqparCommCallBegin(), if there is one. Errors: none. */
SEQPAR_API seqparResult_t seqparCommCallEnd(void);

/**
 * Collective over `comm`: waits until all ranks have called it and all enqueued work is done. Afterwards only
 * seqparCommDestroy() and the query functions may be called. Errors: InvalidArgument (no communicator), RemoteError.
 */
SEQPAR_API seqparResult_t seqparCommFinalize(seqparComm_t comm);

/**
 * Frees `comm`: waits for its enqueued work, then for the other ranks to call it too (calls seqparCommFinalize() if the
 * program has not). On a failed communicator it does not wait for other ranks. NULL has no effect. The handle is
 * invalid afterwards, whatever the result. Errors: InvalidArgument (no communicator), RemoteError (the wait for the
 * other ranks failed).
 */
SEQPAR_API seqparResult_t seqparCommDestroy(seqparComm_t comm);

/**
 * Ends `comm` immediately and frees it: active work on this rank returns seqparRemoteError, and so do all other ranks.
 * May be called from any thread, also while another thread is inside a call on `comm`; returns when that thread has
 * left the call. The handle is invalid afterwards. NULL has no effect. Errors: InvalidArgument (no communicator).
 */
SEQPAR_API seqparResult_t seqparCommAbort(seqparComm_t comm);

/**
 * Stores the state of `comm`: seqparSuccess while it is usable; seqparRemoteError (or another error) once it is lost.
 * An error is permanent. Returns without waiting. Errors: InvalidArgument (NULL, no communicator).
 */
SEQPAR_API seqparResult_t seqparCommGetAsyncError(seqparComm_t comm, seqparResult_t* asyncError);

/** Stores the number of ranks. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommCount(seqparComm_t comm, int* count);
/** Stores this rank, from 0. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommUserRank(seqparComm_t comm, int* rank);
/** Stores SEQPAR_HOST_DEVICE or the CUDA device. Errors: InvalidArgument (NULL, no communicator). */
SEQPAR_API seqparResult_t seqparCommDevice(seqparComm_t comm, int* device);

/** Result of seqparCommQuery(). Start from SEQPAR_COMM_INFO_INITIALIZER. */
typedef struct {
  size_t size;         /**< sizeof(seqparCommInfo_t) */
  unsigned magic;      /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;    /**< SEQPAR_VERSION_CODE */
  int rank;            /**< this rank */
  int nranks;          /**< number of ranks */
  int device;          /**< SEQPAR_HOST_DEVICE or a CUDA device */
  int nodes;           /**< number of different host ids */
  int node;            /**< index of this rank's node, in order of first rank */
  int directPeers;     /**< peers accessed by load and store */
  int networkPeers;    /**< peers accessed by messages */
  double alphaUs;      /**< measured: one-way latency of an empty message, us (0 with one rank) */
  double bandwidth;    /**< measured: bytes per second of a pipelined hop between two ranks */
  double overheadUs;   /**< measured: cost of one more block in a pipeline, us */
  double contention;   /**< ranks per processor on the fullest node, at least 1 */
  char transport[128]; /**< text: the transport in use */
  char reason[512];    /**< text: the reason against a faster transport, and the GPUs that were found */
  int sharing; /**< number of ranks that are threads of this process on this rank's GPU, including this one; 1 on hosts
                */
  int mostThreads; /**< the maximum of `threads` over the ranks. Of the communicator's creation, equal on all ranks */
  int threads; /**< this rank's share of its node's processors, rounded down, at least 1: the sum over the processors
                  that it may use of 1 / the number of ranks that may use the same processor. Of the communicator's
                  creation. Plans on hosts compute with as many threads */
} seqparCommInfo_t;

#define SEQPAR_COMM_INFO_INITIALIZER                                                                                 \
  {                                                                                                                  \
    sizeof(seqparCommInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0, 0., 0., 0., 0., "", "", \
        0, 0, 0                                                                                                      \
  }

/** Fills `info`. Not collective. Errors: InvalidArgument (NULL, wrong magic). */
SEQPAR_API seqparResult_t seqparCommQuery(seqparComm_t comm, seqparCommInfo_t* info);

/* ---------------------------------------------------------------------------------------------------------------------
 * Memory
 * -------------------------------------------------------------------------------------------------------------------
 */

/**
 * Allocates `bytes` of uninitialized memory of the kind that `comm` uses, aligned to 4096. The collectives accept any
 * memory; this memory is faster. On hosts, peers on the same host copy payloads of 16 KiB or more directly from it. It
 * is shared memory then: a child process shares it with its parent after fork(), instead of a copy. It uses huge pages
 * where the system allows them (for shared memory: transparent_hugepage/shmem_enabled). bytes = 0 stores NULL. Errors:
 * InvalidArgument (NULL), SystemError (no memory).
 */
SEQPAR_API seqparResult_t seqparMemAlloc(void** pointer, size_t bytes, seqparComm_t comm);

/** Frees memory of seqparMemAlloc(); NULL has no effect. Errors: InvalidArgument (not from seqparMemAlloc). */
SEQPAR_API seqparResult_t seqparMemFree(void* pointer);

/* ---------------------------------------------------------------------------------------------------------------------
 * Send and receive
 * -------------------------------------------------------------------------------------------------------------------
 */

/** Instead of a peer: no data is sent, or none is received. */
#define SEQPAR_NO_PEER (-1)

/**
 * Sends sendBytes bytes to rank `sendPeer` and receives receiveBytes bytes from rank `receivePeer`; either may be
 * SEQPAR_NO_PEER. Both directions progress together, so rings and exchanges cannot deadlock. Each send matches the
 * peer's receive in call order, with the same number of bytes. Both peers may be this rank (copy). The buffers must not
 * overlap. The send buffer must stay unchanged, and the receive buffer unread, until the work is done on `stream`; a
 * large send is done only when the receiver has read it. Errors: InvalidArgument (NULL with bytes > 0, a peer out of
 * range, overlap), RemoteError.
 */
SEQPAR_API seqparResult_t seqparSendRecv(const void* sendBuffer, size_t sendBytes, int sendPeer, void* receiveBuffer,
                                         size_t receiveBytes, int receivePeer, seqparComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_SEQPAR_H_ */
