// All suites by name, for the programs that run one of them with ranks as threads or as processes.
#pragma once

#include <cstdint>
#include <string>

#include "seqpar/seqpar.h"

namespace seqpar::test {

struct NamedSuite {
  const char* name;
  int rounds;  ///< unless one says otherwise
  /// Collective. Cases depend only on `seed` (equal on all ranks). Throws std::runtime_error at the first error.
  void (*run)(seqparComm_t comm, std::uint64_t seed, int rounds);
};

/// Throws std::runtime_error with all names if there is no such suite.
const NamedSuite& suiteCalled(const std::string& name);

}  // namespace seqpar::test
