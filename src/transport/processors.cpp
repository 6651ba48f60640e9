#include "transport/processors.h"

#include <sched.h>

#include <algorithm>
#include <span>

namespace seqpar {

bool haveProcessorEach(Allgather& control, const std::vector<bool>& onHost) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  // On a machine with more processors than the set holds the call fails, and nobody spins.
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) CPU_ZERO(&mine);
  std::vector<cpu_set_t> sets(onHost.size());
  control.gatherValues(mine, std::span(sets));
  cpu_set_t together;
  CPU_ZERO(&together);
  for (size_t rank = 0; rank < onHost.size(); ++rank) {
    if (onHost[rank]) CPU_OR(&together, &together, &sets[rank]);
  }
  return CPU_COUNT(&together) >= std::count(onHost.begin(), onHost.end(), true);
}

}  // namespace seqpar
