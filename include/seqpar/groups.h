/*
 * seqpar/groups.h - a grid of parallel dimensions over the ranks, and communicators of its groups.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The conventions of seqpar.h apply.
 */
#ifndef SEQPAR_GROUPS_H_
#define SEQPAR_GROUPS_H_

#include "seqpar/seqpar.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Dimensions of parallelism. */
typedef enum {
  seqparDimTensor = 0,  /**< tensor parallelism */
  seqparDimUlysses = 1, /**< sequence parallelism by all-to-all between heads and sequence (DeepSpeed Ulysses) */
  seqparDimRing = 2,    /**< sequence parallelism by ring, mesh or scan: context parallelism */
  seqparDimData = 3,    /**< data parallelism */
  seqparDimPipeline = 4 /**< pipeline parallelism */
} seqparDim_t;

#define SEQPAR_DIMS 5 /**< number of dimensions */

/** A set of dimensions as bits. All ranks of a sequence: SEQPAR_DIM(seqparDimUlysses) | SEQPAR_DIM(seqparDimRing). */
#define SEQPAR_DIM(dim) (1u << (dim))

/**
 * A grid of ranks. Start from SEQPAR_GRID_INITIALIZER: one rank. The rank at coordinates c is
 *
 *     rank = c[order[0]] + extent[order[0]] * (c[order[1]] + extent[order[1]] * (c[order[2]] + ...))
 *
 * with c[d] its coordinate in dimension d. The first dimension of `order` changes fastest, so the ranks of its groups
 * are neighbors and share a node. The default order, tensor, Ulysses, ring, data, pipeline, is USP's (arXiv
 * 2405.07719): the dimension with the most exposed communication is innermost.
 */
typedef struct {
  size_t size;             /**< sizeof(seqparGrid_t) */
  unsigned magic;          /**< SEQPAR_STRUCT_MAGIC */
  unsigned version;        /**< SEQPAR_VERSION_CODE */
  int extent[SEQPAR_DIMS]; /**< ranks in each dimension, by seqparDim_t; at least 1. Their product is the number of
                              ranks */
  int order[SEQPAR_DIMS];  /**< the dimensions, each once, from inner to outer */
} seqparGrid_t;

#define SEQPAR_GRID_INITIALIZER                                                          \
  {                                                                                      \
    sizeof(seqparGrid_t), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE, {1, 1, 1, 1, 1}, {   \
      seqparDimTensor, seqparDimUlysses, seqparDimRing, seqparDimData, seqparDimPipeline \
    }                                                                                    \
  }

/**
 * Stores the number of ranks. Not collective, like the next three functions. Errors: InvalidArgument (NULL, a wrong
 * magic, extents below 1 or with a product above 2^31 - 1, an order that is not a permutation).
 */
SEQPAR_API seqparResult_t seqparGridRanks(const seqparGrid_t* grid, int* ranks);

/** Stores the coordinates of `rank`, coordinates[SEQPAR_DIMS], by seqparDim_t. Errors: as above; InvalidArgument (rank
    range). */
SEQPAR_API seqparResult_t seqparGridCoordinates(const seqparGrid_t* grid, int rank, int* coordinates);

/** Stores the rank with coordinates[SEQPAR_DIMS]. Errors: as above; InvalidArgument (coordinate range). */
SEQPAR_API seqparResult_t seqparGridRank(const seqparGrid_t* grid, const int* coordinates, int* rank);

/**
 * The group of `rank` in `dims`, a set of SEQPAR_DIM() bits: the ranks that differ from it in these dimensions only,
 * ascending. Stores their number in *count, the index of `rank` among them in *place, and the first `capacity` of them
 * in members[capacity] (NULL with 0). Errors: as above; InvalidArgument (no bits or unknown bits in dims).
 */
SEQPAR_API seqparResult_t seqparGridGroup(const seqparGrid_t* grid, unsigned dims, int rank, int* members, int capacity,
                                          int* count, int* place);

/**
 * Splits `world`, a communicator with the ranks of `grid`: comms[i] receives the communicator of this rank's group in
 * dims[i], with the index that seqparGridGroup() stores in *place as its rank. Collective over `world`, with equal
 * arguments; each group is one seqparCommSplit(). Groups of one rank get a communicator too. `config` as in
 * seqparCommSplit(). Destroy each communicator with seqparCommDestroy(); `world` may be destroyed first.
 *
 * Errors: InvalidArgument (NULL, a bad grid or set, a size of `world` that differs from the product of the extents),
 * RemoteError, SystemError. After an error all entries of comms are NULL.
 */
SEQPAR_API seqparResult_t seqparGroupsCreate(seqparComm_t world, const seqparGrid_t* grid, const unsigned* dims,
                                             int groups, seqparComm_t* comms, const seqparConfig_t* config);

#ifdef __cplusplus
}
#endif

#endif /* SEQPAR_GROUPS_H_ */
