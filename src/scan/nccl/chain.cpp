// CHAIN and LASP1 over NCCL (ZeCO, arXiv 2507.01004; LASP, arXiv 2404.02882): while a block is received, the previous
// one is sent on. LASP1 uses one block.
#include "scan/nccl/algorithms.h"

namespace seqpar::chain {

void ncclRun(const NcclScanSetting& setting, std::size_t blocks) {
  NcclAffine& affine = setting.affine;
  const int position = setting.position();
  const bool first = position == 0;
  const bool last = position + 1 == setting.size();
  const auto parts = affine.split(affine.whole(), blocks);
  const std::byte* sent = nullptr;
  for (std::size_t k = 0; k <= parts.size(); ++k) {
    NcclTransfers step;
    if (k > 0 && !last) step.sends.push_back({setting.rankAt(position + 1), sent, affine.stateBytes(parts[k - 1])});
    std::byte* x = nullptr;
    if (k < parts.size() && !first) {
      x = affine.takeStates(parts[k]);
      step.receives.push_back({setting.rankAt(position - 1), x, affine.stateBytes(parts[k])});
    }
    step.run(setting);
    if (k == parts.size()) break;
    std::byte* const wire = last ? nullptr : affine.takeStates(parts[k]);
    affine.hop(parts[k], x, setting.wireType, wire);
    sent = wire;
  }
}

}  // namespace seqpar::chain

namespace seqpar::lasp1 {

void ncclRun(const NcclScanSetting& setting, std::size_t) {
  chain::ncclRun(setting, 1);
}

}  // namespace seqpar::lasp1
