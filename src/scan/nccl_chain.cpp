// CHAIN and LASP1 over NCCL: while a block is received, the one before it is sent on.
#include "scan/nccl_algorithms.h"

namespace seqpar {

void ncclChain(const NcclScanSetting& setting, std::size_t blocks) {
  NcclAffine& affine = setting.affine;
  const int position = setting.position();
  const bool first = position == 0;
  const bool last = position + 1 == setting.size();
  const auto pieces = affine.split(affine.whole(), blocks);
  const std::byte* sent = nullptr;
  for (std::size_t k = 0; k <= pieces.size(); ++k) {
    NcclTransfers step;
    if (k > 0 && !last) step.sends.push_back({setting.rankAt(position + 1), sent, affine.stateBytes(pieces[k - 1])});
    std::byte* x = nullptr;
    if (k < pieces.size() && !first) {
      x = affine.takeStates(pieces[k]);
      step.receives.push_back({setting.rankAt(position - 1), x, affine.stateBytes(pieces[k])});
    }
    step.run(setting);
    if (k == pieces.size()) break;
    std::byte* const wire = last ? nullptr : affine.takeStates(pieces[k]);
    affine.hop(pieces[k], x, setting.wireType, wire);
    sent = wire;
  }
}

}  // namespace seqpar
