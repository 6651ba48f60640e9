/*
 * All-Scan on four ranks, threads of this process.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <seqpar/seqpar.h>
#include <stdio.h>

enum { RANKS = 4, DK = 2, DV = 3 }; /* one head, a state of DK x DV */

static void* rank_main(void* comm) {
  float state[DK * DV] = {1, 1, 1, 1, 1, 1}, decay[DK] = {0.5f, 0.5f}, total[DK * DV];
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER; /* forward, one decay per row, fp32 */
  int rank = -1;
  params.heads = 1;
  params.dk = DK;
  params.dv = DV;
  seqparCommUserRank(comm, &rank);
  if (seqparAllScan(state, decay, NULL, NULL, total, &params, comm, NULL) == seqparSuccess)
    printf("rank %d: the state after my tokens is %g everywhere\n", rank, total[0]);
  else
    fprintf(stderr, "rank %d: %s\n", rank, seqparGetLastError(comm));
  seqparCommDestroy(comm);
  return NULL;
}

int main(void) {
  seqparComm_t comms[RANKS];
  pthread_t threads[RANKS];
  if (seqparCommInitAll(comms, RANKS, NULL) != seqparSuccess)
    return fprintf(stderr, "%s\n", seqparGetLastError(NULL)), 1;
  for (int r = 0; r < RANKS; ++r) pthread_create(&threads[r], NULL, rank_main, comms[r]);
  for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);
  return 0;
}
