// ONESHOT and LASP2 (LASP-2, arXiv 2502.07563) over NCCL: each rank receives the maps uncombined, and combines the maps
// of earlier positions.
#include "scan/nccl/algorithms.h"

namespace seqpar {
namespace {

/// Combines the maps of earlier positions, and hops from the resulting state.
void finish(const NcclScanSetting& setting, const MapSlots& slots) {
  NcclAffine& affine = setting.affine;
  const float* const x = setting.position() == 0 ? nullptr : affine.fold(slots, setting.position());
  affine.hop(affine.whole(), x, seqparFloat32, nullptr);
}

}  // namespace

namespace oneshot {

void ncclRun(const NcclScanSetting& setting, std::size_t) {
  NcclAffine& affine = setting.affine;
  const Block whole = affine.whole();
  const int position = setting.position();
  MapSlots slots;
  if (position > 0) slots = affine.takeSlots(whole, position, 64);
  NcclTransfers step;
  for (int p = position + 1; p < setting.size(); ++p) {
    for (std::size_t part = 0; part < NcclAffine::partsAt(position); ++part) {
      step.sends.push_back({setting.rankAt(p), affine.own(whole, part), affine.partBytes(whole, part)});
    }
  }
  for (int p = 0; p < position; ++p) {
    for (std::size_t part = 0; part < NcclAffine::partsAt(p); ++part) {
      step.receives.push_back({setting.rankAt(p), slots.at(p, part), affine.partBytes(whole, part)});
    }
  }
  step.run(setting);
  finish(setting, slots);
}

}  // namespace oneshot

namespace lasp2 {

void ncclRun(const NcclScanSetting& setting, std::size_t) {
  NcclAffine& affine = setting.affine;
  const Block whole = affine.whole();
  MapSlots slots = affine.takeSlots(whole, setting.size(), 1);
  std::vector<NcclGather> parts;
  for (std::size_t part = 0; part < kMapParts; ++part) {
    parts.push_back({affine.own(whole, part), slots.data[part], affine.partBytes(whole, part)});
  }
  setting.nccl.allGather(parts, setting.stream);
  // The gathered maps are in rank order; positions ascend or descend.
  const int first = setting.rankAt(0);
  const std::ptrdiff_t direction = setting.size() > 1 ? setting.rankAt(1) - first : 1;
  for (std::size_t part = 0; part < kMapParts; ++part) {
    if (slots.data[part] != nullptr) slots.data[part] = slots.at(first, part);
    slots.stride[part] *= direction;
  }
  finish(setting, slots);
}

}  // namespace lasp2
}  // namespace seqpar
