// Ranks that split a communicator until a split fails.
#pragma once

#include "survivors.h"

namespace seqpar::test {

/// After a failed split: shrinks `comm`, scans, and ends both communicators. Counts a failure as a wrong result.
void shrinkAndScan(seqparComm_t comm, Report& report);

/// Splits `comm` until a rank dies, then calls shrinkAndScan().
void splitUntilFailure(seqparComm_t comm, Report& report);

}  // namespace seqpar::test
