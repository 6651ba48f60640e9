// Selects the backend of a communicator's scans.
#pragma once

#include <memory>

#include "scan/backend.h"

namespace seqpar {

/// Collective on a device communicator: measures its links. `comm` must outlive the backend.
std::unique_ptr<ScanBackend> makeScanBackend(Communicator& comm);

}  // namespace seqpar
