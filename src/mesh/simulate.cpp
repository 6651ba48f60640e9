#include "mesh/simulate.h"

namespace seqpar {

MeshStepTiming stepTiming(const seqparMeshStep_t& step, const MeshCosts& costs) {
  const bool moves = step.operation != seqparMeshCompute;
  return {moves ? costs.step[static_cast<size_t>(step.operation)] : 0, step.tileCount * costs.tile};
}

MeshTiming simulate(const MeshSchedule& schedule, const MeshCosts& costs) {
  MeshTiming timing;
  for (const auto& step : schedule.steps) {
    const auto one = stepTiming(step, costs);
    timing.total += one.total();
    timing.communication += one.communication;
    timing.exposed += one.total() - one.computation;
  }
  return timing;
}

}  // namespace seqpar
