/* Each process of an MPI job sends its rank to the next process, over seqpar instead of MPI. Compile with mpicc, start
 * with mpirun. Without MPI, seqparCommInitEnv(&comm, NULL) takes the place of seqparCommInitMPI under torchrun. */
#include <mpi.h>
#include <seqpar/seqpar_mpi.h>
#include <stdio.h>

int main(int argc, char** argv) {
  seqparComm_t comm;
  int rank = 0, ranks = 0, received = -1;
  seqparResult_t result;
  MPI_Init(&argc, &argv);
  if (seqparCommInitMPI(&comm, MPI_COMM_WORLD, NULL) != seqparSuccess)
    return fprintf(stderr, "%s\n", seqparGetLastError(NULL)), 1;
  seqparCommUserRank(comm, &rank);
  seqparCommCount(comm, &ranks);
  result =
      seqparSendRecv(&rank, sizeof rank, (rank + 1) % ranks, &received, sizeof received, (rank + ranks - 1) % ranks,
                     comm, NULL); /* NULL: no stream, so the call returns when the data has arrived */
  if (result == seqparSuccess)
    printf("rank %d of %d received %d\n", rank, ranks, received);
  else
    fprintf(stderr, "rank %d: %s\n", rank, seqparGetLastError(comm));
  seqparCommDestroy(comm);
  MPI_Finalize();
  return result != seqparSuccess;
}
