// Which backend a communicator's scans have.
#pragma once

#include <memory>

#include "scan/backend.h"

namespace seqpar {

/// Collective on a device communicator, whose links it measures. `comm` must outlive the backend.
std::unique_ptr<ScanBackend> makeScanBackend(Communicator& comm);

}  // namespace seqpar
