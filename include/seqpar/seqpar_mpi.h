/*
 * seqpar/seqpar_mpi.h - communicator from an MPI communicator. Header only: the library does not link MPI.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SEQPAR_SEQPAR_MPI_H_
#define SEQPAR_SEQPAR_MPI_H_

#include <limits.h>
#include <mpi.h>

#include "seqpar/seqpar.h"

static inline int seqparMpiAllgather(const void* mine, void* all, size_t bytes, void* context) {
  if (bytes > (size_t)INT_MAX) return 1;
  return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm*)context) != MPI_SUCCESS;
}

/**
 * Collective over `mpi`: creates *comm with the same ranks in the same order. `mpi` is used during the call only.
 * `config` NULL: all defaults. MPI must be initialized with a thread level that allows the calling thread to call it.
 * Errors: as seqparCommInitOob.
 */
static inline seqparResult_t seqparCommInitMPI(seqparComm_t* comm, MPI_Comm mpi, const seqparConfig_t* config) {
  seqparOob_t oob = SEQPAR_OOB_INITIALIZER;
  if (MPI_Comm_rank(mpi, &oob.rank) != MPI_SUCCESS || MPI_Comm_size(mpi, &oob.nranks) != MPI_SUCCESS) {
    return seqparInvalidArgument;
  }
  oob.allgather = seqparMpiAllgather;
  oob.context = &mpi;
  return seqparCommInitOob(comm, &oob, config);
}

#endif /* SEQPAR_SEQPAR_MPI_H_ */
