#include "attn/block/block.h"

namespace seqpar::attn {

void finishInMemory(Exec& exec, const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  for (const auto& addend : addends) {
    if (addend.tensor.elements() > 0) exec.add(sum.rows(addend.first, addend.tensor.tokens), addend.tensor);
  }
  exec.copy(out, sum);
}

}  // namespace seqpar::attn
