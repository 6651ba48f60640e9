// Models of whole transformers, and the time of their layers without attention.
#pragma once

#include <cstdint>
#include <string>

#include "machine.h"
#include "run.h"

namespace seqpar::sim {

struct Model {
  std::string name;
  int64_t softmaxLayers = 0, linearLayers = 0;
  int linearFamily = seqparAttnGla;
  int64_t hidden = 0, heads = 0, kvHeads = 0, headDim = 0, intermediate = 0, vocabulary = 0;

  int64_t layers() const { return softmaxLayers + linearLayers; }
};

/// A built-in name, FAMILY:HEADSxDIM (one layer of attention alone), or a JSON file with the members above. Throws
/// std::invalid_argument.
Model readModel(const std::string& nameOrPath);
std::string modelNames();

/// Descriptions of a layer's attention over `tokens` tokens.
seqparAttnDesc_t attentionOf(const Model& model, bool softmax, int64_t tokens, bool full);

/// us of a step's matrix products and element-wise work of the whole model on `tokens` tokens of one rank.
double otherWorkUs(const Model& model, const Machine& machine, double tokens, bool forwardOnly);

/// The id of a linear family by its name, -1 if there is none.
int linearFamily(const std::string& name);

}  // namespace seqpar::sim
