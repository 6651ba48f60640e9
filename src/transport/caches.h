// The caches of this host's processors.
#pragma once

namespace seqpar {

/// True if all processors of this host share their last cache, so that a reader gets recently written data from it
/// faster than from memory. False if unknown.
bool processorsShareCache();

}  // namespace seqpar
