// The choice between implementations: there is one.
#include "transport/network.h"

#include "transport/ucx_network.h"

namespace seqpar {

std::unique_ptr<Network> Network::connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                          std::chrono::milliseconds timeout) {
  return UcxNetwork::connect(control, peers, health, timeout);
}

const std::string& Network::problem() {
  return findUcx().problem;
}

}  // namespace seqpar
