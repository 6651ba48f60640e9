/*
 * seqpar/attn_family.h - the families of attention: softmax, and the recurrences of linear attention with their gates.
 * Library: libseqpar_attn.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply, except that seqparAttnGetLastError() of attn.h returns the text of an error.
 */
#ifndef SEQPAR_ATTN_FAMILY_H_
#define SEQPAR_ATTN_FAMILY_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Operator family. */
typedef enum {
  seqparAttnSoftmax = 0,    /**< softmax(scale q k^T + mask) v */
  seqparAttnGla = 1,        /**< S_t = diag(exp(g_t)) S_(t-1) + k_t v_t^T, o_t = scale q_t^T S_t; gates: log_decay g
                                 [batch][tokens][heads][headDim]. Gated linear attention (arXiv 2312.06635) */
  seqparAttnScalar = 2,     /**< Gla with one decay per token and head, g [batch][tokens][heads]: Mamba-2's SSD form
                                 (arXiv 2405.21060), simple GLA */
  seqparAttnFixed = 3,      /**< Gla with one decay per head, g [heads]: RetNet (arXiv 2307.08621), Lightning */
  seqparAttnSum = 4,        /**< Gla without decay: linear attention (arXiv 2006.16236) */
  seqparAttnDelta = 5,      /**< S_t = (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, o_t as in Gla; gates: beta b
                                 [batch][tokens][heads]. The delta rule: DeltaNet (arXiv 2406.06484) */
  seqparAttnGatedDelta = 6, /**< S_t = exp(g_t) (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T; gates: log_decay g
                                 [batch][tokens][heads], beta. Gated DeltaNet (arXiv 2412.06464) */
  seqparAttnKda = 7         /**< S_t = (I - b_t k_t k_t^T) diag(exp(g_t)) S_(t-1) + b_t k_t v_t^T; gates: log_decay g
                                 [batch][tokens][heads][headDim], beta. Kimi Delta Attention (arXiv 2510.26692) */
} seqparAttnFamily_t;

#define SEQPAR_ATTN_FAMILIES 8  /**< largest family id + 1 */
#define SEQPAR_ATTN_MAX_GATES 4 /**< length of arrays of gates */

/** Shape of a gate, an input of linear attention in addition to q, k and v. */
typedef enum {
  seqparAttnGatePerHead = 0,   /**< [heads] */
  seqparAttnGatePerToken = 1,  /**< [batch][tokens][heads] */
  seqparAttnGatePerChannel = 2 /**< [batch][tokens][heads][headDim] */
} seqparAttnGateShape_t;

/** A family of linear attention, for generic callers. Start from SEQPAR_ATTN_FAMILY_INFO_INITIALIZER. */
typedef struct {
  size_t size;       /**< sizeof(seqparAttnFamilyInfo_t) */
  unsigned magic;    /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;  /**< SEQPAR_VERSION_CODE */
  const char* name;  /**< for example "gla"; static memory, as all strings here */
  const char* paper; /**< title or system, with its arXiv number */
  int transition;    /**< a seqparScanOp_t: the kind of the state's transition A in S_t = A_t S_(t-1) + B_t */
  int gates;         /**< number of gates: the first entries of `gates`, `gateTypes` and `dGates`. The input
                         gate of seqparAttnDesc_t is not counted */
  const char* gateNames[SEQPAR_ATTN_MAX_GATES]; /**< [gates]: for example "log_decay" */
  int gateShapes[SEQPAR_ATTN_MAX_GATES];        /**< [gates]: seqparAttnGateShape_t */
} seqparAttnFamilyInfo_t;

#define SEQPAR_ATTN_FAMILY_INFO_INITIALIZER                                                     \
  {                                                                                             \
    sizeof(seqparAttnFamilyInfo_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, NULL, NULL, 0, 0, \
        {NULL, NULL, NULL, NULL}, {                                                             \
      0, 0, 0, 0                                                                                \
    }                                                                                           \
  }

/**
 * Stores the description of a family of linear attention. Errors: InvalidArgument (NULL, a wrong magic,
 * seqparAttnSoftmax or an unknown id).
 */
SEQPAR_API seqparResult_t seqparAttnFamilyQuery(int family, seqparAttnFamilyInfo_t* info);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_ATTN_FAMILY_H_ */
