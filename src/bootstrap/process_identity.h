// Which process a number denotes, and whether it has ended.
#pragma once

#include <cstdint>

namespace seqpar {

/// Trivially copyable: ranks gather it.
struct ProcessIdentity {
  uint64_t boot = 0;   ///< of the host since its last start; 0: unknown
  uint64_t start = 0;  ///< of the process
  int64_t pid = 0;
};

ProcessIdentity thisProcess();

/// True for a process that this process can observe: of this host and of its process namespace.
bool isVisible(const ProcessIdentity& process);
/// True once a visible process has ended.
bool hasEnded(const ProcessIdentity& process);

}  // namespace seqpar
