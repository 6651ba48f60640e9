// What a run's report says of the run itself.
#pragma once

#include <string>
#include <vector>

#include "gpu.h"
#include "group.h"
#include "settings.h"

namespace seqpar::perf {

struct RankFacts {
  int pid = 0, device = SEQPAR_HOST_DEVICE;
  std::string host, deviceName, transport;
};

struct RunFacts {
  std::string program;
  std::vector<std::string> arguments;
  int version = 0;      ///< of seqpar
  std::string started;  ///< date and time
  std::vector<RankFacts> ranks;
  seqparCommInfo_t comm = SEQPAR_COMM_INFO_INITIALIZER;
  LinkLimits limits;
  double barrierUs = 0;            ///< which is subtracted from the times
  int sharing = 0;                 ///< the most ranks that a GPU has
  std::string mode, average, how;  ///< of the times, in words
};

/// Collective.
RunFacts gatherFacts(const std::string& program, const std::vector<std::string>& arguments, const Settings& settings,
                     Group& group);

/// The date and time as nccl-tests writes them.
std::string timestamp();

}  // namespace seqpar::perf
