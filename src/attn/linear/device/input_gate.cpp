// The input gate on a GPU where the passes do not apply it: a kernel multiplies the values by it before the passes, and
// another computes the gradients of both after them.
#include "attn/linear/device/check.h"
#include "attn/linear/device/passes.h"

namespace seqpar::attn::linear {

InputGate DevicePasses::inputGate(const Inputs& in) const {
  const Tensor& gate = in.gates[shard_.family->gateCount];
  InputGate made;
  made.batch = in.v.batch;
  made.tokens = in.v.tokens;
  made.heads = static_cast<int>(in.v.heads);
  made.dv = static_cast<int>(in.v.dim);
  made.type = in.v.type;
  made.gateType = gate.type;
  made.values = inputOf(in.v);
  made.gates = inputOf(gate);
  return made;
}

Tensor DevicePasses::valuesOf(const Inputs& in) const {
  if (!multipliesValues()) return in.v;
  return denseTensor(products_, in.v.type, in.v.batch, in.v.tokens, in.v.heads, in.v.dim);
}

void DevicePasses::multiplyValues(const Inputs& in) {
  if (!multipliesValues()) return;
  const Tensor products = valuesOf(in);
  checkLaunch(launchGateValues({inputGate(in), outputOf(products)}, {exec_.main()}), "values times the input gate");
  sequence_.end();  // the products are an input of the next kernels
}

void DevicePasses::finishValues(const Inputs& in, const Gradients& to) {
  if (!multipliesValues()) return;
  const Tensor& dGate = to.dGates[shard_.family->gateCount];
  checkLaunch(launchGateGradients({inputGate(in), outputOf(to.dv), outputOf(dGate)}, {exec_.main()}),
              "gradients of the input gate");
  sequence_.end();
}

}  // namespace seqpar::attn::linear
