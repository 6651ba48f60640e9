#include "exchange/backend.h"

#include "exchange/device_exchanges.h"

namespace seqpar {

// `if constexpr` discards the branch of a backend that this build omits, so its functions need no definition.
const ExchangeBackend& exchangesOf(const Communicator& comm) {
  if constexpr (SEQPAR_HAS_CUDA) {
    if (comm.device() != nullptr) return exchangesOf(*comm.device());
  }
  return hostExchanges();
}

}  // namespace seqpar
