/*
 * seqpar/stream.h - host streams and events: the streams of collectives on host communicators. seqpar.h includes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply.
 */
#ifndef SEQPAR_STREAM_H_
#define SEQPAR_STREAM_H_

#include "seqpar/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Host streams and events
 *
 * Work on a stream runs in order: on the stream's own thread, concurrently with the caller, or on a thread that waits
 * for it. The last argument of every collective is a stream: on a host communicator a seqparStream_t, or NULL to run to
 * completion in the call. Collectives of one communicator run in call order, also on different streams.
 *
 * A stream continues after failed work, so its events pass and it becomes idle. Errors propagate with events: a record
 * contains the errors of the stream's earlier work that no seqparStreamSynchronize() has returned, and a stream that
 * waits for the event gets them too. seqparStreamSynchronize() returns a stream's first error and clears it;
 * seqparEventSynchronize() and seqparEventQuery() return a record's first error. seqparStreamQuery() and
 * seqparStreamDestroy() return no errors of work.
 * ---------------------------------------------------------------------------------------------------------------------
 */

/** Creates a stream with its thread. Errors: InvalidArgument (NULL), SystemError (no thread). */
SEQPAR_API seqparResult_t seqparStreamCreate(seqparStream_t* stream);
/**
 * Waits for the stream's work, then frees it. Errors of work that seqparStreamSynchronize() has not returned are lost.
 * NULL has no effect. Errors: InvalidArgument (no stream), InvalidUsage (called by work of this stream).
 */
SEQPAR_API seqparResult_t seqparStreamDestroy(seqparStream_t stream);
/**
 * Waits for all work enqueued so far. Returns the first error of work since the last call, its own work's or one that
 * it got by waiting for an event, and clears it. Errors: InvalidArgument (no stream), those of the enqueued collectives
 * and of seqparStreamFail().
 */
SEQPAR_API seqparResult_t seqparStreamSynchronize(seqparStream_t stream);
/** seqparSuccess if the stream is idle, seqparInProgress if not. Errors: InvalidArgument (no stream). */
SEQPAR_API seqparResult_t seqparStreamQuery(seqparStream_t stream);
/**
 * Enqueues a call of function(argument), which must not throw and must not call this library on the same stream, except
 * for seqparStreamFail(), which reports that the function failed. Nor may it wait for later work of the stream: it ends
 * a communicator with collectives there by seqparCommFail(), since seqparCommAbort() would wait for them. Errors:
 * InvalidArgument (no stream, `function` NULL).
 */
SEQPAR_API seqparResult_t seqparStreamLaunch(seqparStream_t stream, void (*function)(void*), void* argument);
/**
 * Reports, in a function of seqparStreamLaunch(), that the function failed. seqparStreamSynchronize() returns `result`
 * with `text`. A later collective on this stream, or on a stream that waits for it, would send invalid data: it ends
 * its communicator as seqparCommFail() does. Errors: InvalidArgument (no stream, a `result` that is no error, NULL).
 */
SEQPAR_API seqparResult_t seqparStreamFail(seqparStream_t stream, seqparResult_t result, const char* text);

/** Creates an event without a record. Errors: InvalidArgument (NULL). */
SEQPAR_API seqparResult_t seqparEventCreate(seqparEvent_t* event);
/** Frees an event; work that waits for it is not affected. NULL has no effect. Errors: InvalidArgument (no event). */
SEQPAR_API seqparResult_t seqparEventDestroy(seqparEvent_t event);
/**
 * Records the current end of `stream`'s work. A later record replaces it. Errors: InvalidArgument (no event, no
 * stream).
 */
SEQPAR_API seqparResult_t seqparEventRecord(seqparEvent_t event, seqparStream_t stream);
/**
 * Later work of `stream` waits for the event's latest record (no wait if there is none). Errors: InvalidArgument (no
 * stream, no event).
 */
SEQPAR_API seqparResult_t seqparStreamWaitEvent(seqparStream_t stream, seqparEvent_t event);
/**
 * Blocks the caller until the event's latest record has passed (no wait if there is none). Errors: InvalidArgument (no
 * event), the errors that the record contains.
 */
SEQPAR_API seqparResult_t seqparEventSynchronize(seqparEvent_t event);
/** seqparSuccess if the event's latest record has passed (or there was none), else seqparInProgress. Errors:
 * as seqparEventSynchronize. */
SEQPAR_API seqparResult_t seqparEventQuery(seqparEvent_t event);
/** Stores the milliseconds between two passed records. Errors: InvalidArgument (NULL, no event), InvalidUsage (not
 * recorded), InProgress (not passed). */
SEQPAR_API seqparResult_t seqparEventElapsedTime(float* milliseconds, seqparEvent_t start, seqparEvent_t end);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_STREAM_H_ */
