#include "exchange/backend.h"

namespace seqpar {

// A branch that a build does not have is discarded, and what it names need not exist.
const ExchangeBackend& exchangesOf(const Communicator& comm) {
  if constexpr (SEQPAR_HAS_CUDA) {
    if (comm.device() != nullptr) return deviceExchanges();
  }
  return hostExchanges();
}

}  // namespace seqpar
