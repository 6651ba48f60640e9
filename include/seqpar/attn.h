/*
 * seqpar/attn.h - attention over a sequence that is sharded across ranks: the interface of libseqpar_attn, which uses
 * libseqpar.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply, except that seqparAttnGetLastError() returns the text of an error.
 */
#ifndef SEQPAR_ATTN_H_
#define SEQPAR_ATTN_H_

#include "seqpar/attn_layout.h"
#include "seqpar/attn_plan.h"
#include "seqpar/seqpar.h"
#include "seqpar/short_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The text of the calling thread's latest failed call of this library: the call, the argument, its value and the
 * expected value. An empty string if there was none. Valid until the thread's next failed call. Never NULL.
 */
SEQPAR_API const char* seqparAttnGetLastError(void);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_H_ */
