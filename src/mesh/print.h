// Schedules as text.
#pragma once

#include <string>

#include "mesh/schedule.h"

namespace seqpar {

/// "compute", "recv_q", ...
const char* meshOperationName(int operation);

/// {"pass":.., "a":.., "b":.., "total_us":.., "exposed_us":.., "steps":[{"operation":.., "index":..,
/// "communication_us":.., "computation_us":.., "tiles":[[q,kv],..]},..]}
std::string scheduleJson(const MeshSchedule& schedule, const MeshCosts& costs);

/// For people: which step computes each tile, then the steps with their times.
std::string scheduleDiagram(const MeshSchedule& schedule, const MeshCosts& costs);

}  // namespace seqpar
