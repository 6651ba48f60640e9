/* Two ranks as threads: a scan, an exchange, and an error with its text. Exit status 0 if all is as it should be. */
#include <pthread.h>
#include <seqpar/seqpar.h>
#include <stdio.h>
#include <string.h>

enum { kRanks = 2, kHeads = 3, kRows = 2, kColumns = 5, kElements = kHeads * kRows * kColumns };

static seqparComm_t comms[kRanks];

static int check(int rank, const char* what, int fine) {
  if (!fine) fprintf(stderr, "rank %d: %s: %s\n", rank, what, seqparGetLastError(comms[rank]));
  return fine;
}

static void* runRank(void* argument) {
  const int rank = *(int*)argument;
  float state[kElements], prefix[kElements], total[kElements];
  float mine = (float)rank, other = -1.f;
  int i, fine = 1;
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  fine &= check(rank, "seqparCommQuery", seqparCommQuery(comms[rank], &info) == seqparSuccess);
  fine &= check(rank, "the communicator is another", info.rank == rank && info.nranks == kRanks);
  if (rank == 0) printf("transport: %s; %s\n", info.transport, info.reason);
  params.op = seqparScanSum;
  params.heads = kHeads;
  params.dk = kRows;
  params.dv = kColumns;
  for (i = 0; i < kElements; ++i) state[i] = (float)((rank + 1) * (i + 1));

  fine &= check(rank, "seqparAllScan",
                seqparAllScan(state, NULL, NULL, prefix, total, &params, comms[rank], NULL) == seqparSuccess);
  for (i = 0; i < kElements; ++i) {
    const float expected = rank == 0 ? 0.f : (float)(i + 1);
    fine &= check(rank, "the prefix is wrong", prefix[i] == expected);
    fine &= check(rank, "the total is wrong", total[i] == expected + state[i]);
  }

  fine &= check(rank, "seqparSendRecv",
                seqparSendRecv(&mine, sizeof(mine), 1 - rank, &other, sizeof(other), 1 - rank, comms[rank], NULL) ==
                    seqparSuccess);
  fine &= check(rank, "the wrong number arrived", other == (float)(1 - rank));

  params.heads = -1;
  fine &= check(rank, "a negative shape was accepted",
                seqparAllScan(state, NULL, NULL, prefix, total, &params, comms[rank], NULL) == seqparInvalidArgument);
  fine &= check(rank, "the error text does not name the argument",
                strstr(seqparGetLastError(comms[rank]), "heads") != NULL);

  fine &= check(rank, "seqparCommDestroy", seqparCommDestroy(comms[rank]) == seqparSuccess);
  return fine ? NULL : argument;
}

int main(void) {
  pthread_t threads[kRanks];
  int ranks[kRanks], version = 0, rank, failed = 0;
  if (seqparGetVersion(&version) != seqparSuccess || version != SEQPAR_VERSION_CODE) {
    fprintf(stderr, "the library is version %d, the header %d\n", version, SEQPAR_VERSION_CODE);
    return 1;
  }
  if (seqparCommInitAll(comms, kRanks, NULL) != seqparSuccess) {
    fprintf(stderr, "seqparCommInitAll: %s\n", seqparGetLastError(NULL));
    return 1;
  }
  for (rank = 0; rank < kRanks; ++rank) {
    ranks[rank] = rank;
    if (pthread_create(&threads[rank], NULL, runRank, &ranks[rank]) != 0) return 1;
  }
  for (rank = 0; rank < kRanks; ++rank) {
    void* bad = NULL;
    pthread_join(threads[rank], &bad);
    if (bad != NULL) failed = 1;
  }
  if (!failed) printf("C consumer: ok, version %d\n", version);
  return failed;
}
