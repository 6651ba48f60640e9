// The facts about a run that its report contains.
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
  double barrierUs = 0;            ///< subtracted from the times
  int sharing = 0;                 ///< maximum number of ranks per GPU
  std::string mode, average, how;  ///< how times are taken, as text
};

/// Collective.
RunFacts gatherFacts(const std::string& program, const std::vector<std::string>& arguments, const Settings& settings,
                     Group& group);

/// The date and time in nccl-tests' format.
std::string timestamp();

}  // namespace seqpar::perf
