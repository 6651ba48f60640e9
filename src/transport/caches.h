// The caches of this host's processors.
#pragma once

#include <cstddef>

namespace seqpar {

/// True if all processors of this host share their last cache, so that a reader gets recently written data from it
/// faster than from memory. False if unknown.
bool processorsShareCache();

/// Bytes of the last cache of processor 0, as the system reports it; 0 if it does not.
size_t lastCacheBytes();

}  // namespace seqpar
