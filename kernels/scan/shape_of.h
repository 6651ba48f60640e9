// Selects the shape of a task's vecs.
#pragma once

#include "kernels/scan/vecs.h"

namespace seqpar {

/// Calls visit(Shape()) with the fastest shape that supports `task`.
template <class Visit>
auto withShape(const ScanTask& task, const Visit& visit) {
  const auto uniform = [&](std::uint32_t elements) {
    return task.span.divisor() % elements == 0 && task.elements % elements == 0;
  };
  if (task.wireType != seqparFloat32) {
    if (uniform(8)) return visit(UniformHalfVecs());
    return visit(AnyHalfVecs());
  }
  if (task.stateType == seqparFloat32 && task.aligned && uniform(4)) return visit(FastVecs());
  return visit(AnyVecs());
}

}  // namespace seqpar
