// The passes on a GPU: memory of states between ranks.
#include "attn/linear/device/passes.h"

namespace seqpar::attn::linear {

void DevicePasses::copyStates(float* to, const float* from) {
  const auto states = [&](const float* data) {
    return denseTensor(const_cast<float*>(data), seqparFloat32, 1, static_cast<int64_t>(shard_.allHeads()), 1,
                       static_cast<int64_t>(shard_.stateSize()));
  };
  if (from == nullptr) {
    exec_.zero(states(to));
  } else {
    exec_.copy(states(to), states(from));
  }
}

void DevicePasses::makeIdentity() {
  sequence_.end();
  const auto clear = [&](float* numbers, size_t ofHead) {
    exec_.zero(denseTensor(numbers, seqparFloat32, 1, static_cast<int64_t>(shard_.allHeads()), 1,
                           static_cast<int64_t>(ofHead)));
  };
  clear(rankState_, shard_.stateSize());
  clear(rankDecay_, shard_.width());  // logarithms
}

}  // namespace seqpar::attn::linear
