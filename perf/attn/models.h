// Layers of linear attention in published models: shapes, and decays as their training starts with them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/names.h"

namespace seqpar::perf {

enum class Decays {
  Drawn,      ///< drawnGates(): as GLA's models, with the normalizer 16
  Mamba2,     ///< dt A: A between -16 and -1 per head, dt log-uniform between 0.001 and 0.1 per head, times 1/2 to 3/2
  RetNet,     ///< log(1 - 2^(-5 - head)) per head
  Lightning,  ///< -2^(-8 (head + 1) / heads) per head, the first layer's
};

struct ModelShape {
  const char* name;
  int family;
  size_t heads, keyHeads, keyDim, valueDim;
  Decays decays;
};

const std::vector<ModelShape>& modelShapes();
/// Indices into modelShapes() by name.
Names modelNames();

/// Log-decays [rows][heads], or [heads] of families with a decay per head: rows is 1.
std::vector<float> initialDecays(Decays kind, size_t rows, size_t heads, unsigned seed);

}  // namespace seqpar::perf
