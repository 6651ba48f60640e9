/*
 * seqpar/attn.h - attention over a sequence that is sharded across ranks: all of libseqpar_attn, which stands on
 * libseqpar.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h hold here too, with one difference: the text of an error is seqparAttnGetLastError()'s.
 */
#ifndef SEQPAR_ATTN_H_
#define SEQPAR_ATTN_H_

#include "seqpar/attn_plan.h"
#include "seqpar/seqpar.h"
#include "seqpar/short_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The text of the latest failed call into this library by the calling thread: the call, the argument, its value and
 * what was expected. An empty string if there was none. It lives until the thread's next failed call. Never NULL.
 */
SEQPAR_API const char* seqparAttnGetLastError(void);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_H_ */
