/* One rank's All-Scan, for nvtx.sh. */
#include <stdio.h>

#include "seqpar/scan.h"
#include "seqpar/seqpar.h"

int main(void) {
  seqparUniqueId id;
  seqparComm_t comm = NULL;
  float state[64] = {0}, prefix[64];
  int ranks = 0;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.algorithm = seqparScanDoubling;
  params.heads = 1;
  params.dk = params.dv = 8;
  if (seqparGetUniqueId(&id) != seqparSuccess || seqparCommInitRank(&comm, 1, id, 0) != seqparSuccess ||
      seqparAllScan(state, NULL, NULL, prefix, NULL, &params, comm, NULL) != seqparSuccess ||
      seqparAllScan(NULL, NULL, NULL, prefix, NULL, &params, comm, NULL) != seqparInvalidArgument ||
      seqparCommCount(comm, &ranks) != seqparSuccess || seqparCommDestroy(comm) != seqparSuccess) {
    printf("%s\n", seqparGetLastError(NULL));
    return 1;
  }
  return 0;
}
