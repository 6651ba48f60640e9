#include "splits.h"

#include <cstdio>

#include "seqpar/shrink.h"

namespace seqpar::test {

void shrinkAndScan(seqparComm_t comm, Report& report) {
  seqparComm_t next = nullptr;
  Report again;
  again.rank = report.rank;  // only the last rank may be gone
  const bool works = seqparCommShrink(comm, nullptr, &next) == seqparSuccess &&
                     scanOnce(next, seqparScanAuto, 5000, again) && again.wrong == 0;
  if (!works) {
    ++report.wrong;
    std::printf("rank %d after the split: %s\n", report.rank, next == nullptr ? seqparGetLastError(comm) : again.text);
  }
  seqparCommDestroy(next);
  seqparCommDestroy(comm);
}

void splitUntilFailure(seqparComm_t comm, Report& report) {
  auto result = seqparSuccess;
  while (result == seqparSuccess) {
    seqparComm_t part = nullptr;
    result = seqparCommSplit(comm, report.rank % 2, 0, &part, nullptr);
    if (result != seqparSuccess) break;
    seqparCommAbort(part);
    ++report.scans;
  }
  note(report, result, comm);
  shrinkAndScan(comm, report);
}

}  // namespace seqpar::test
