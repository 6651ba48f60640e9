// How long a schedule takes: a step ends when its movement and its tiles have ended on all ranks.
#pragma once

#include "mesh/schedule.h"

namespace seqpar {

/// Seconds.
struct MeshTiming {
  double total = 0;
  double communication = 0;  ///< of all movements
  double exposed = 0;        ///< of movements while nothing is computed
};

struct MeshStepTiming {
  double communication = 0;
  double computation = 0;
  double total() const { return communication > computation ? communication : computation; }
};

MeshStepTiming stepTiming(const seqparMeshStep_t& step, const MeshCosts& costs);

MeshTiming simulate(const MeshSchedule& schedule, const MeshCosts& costs);

}  // namespace seqpar
