// The families of the delta rule: their rows.
#include "attn/linear/device/delta_windows.h"
#include "attn/linear/families/delta/passes.h"

namespace seqpar::attn::linear {
namespace {

#ifdef SEQPAR_ATTN_CUDA
constexpr auto kMakeDevice = makeDeviceDeltaPasses;
#else
constexpr auto kMakeDevice = decltype(Family::makeDevice){};
#endif

const RegisteredFamily kDelta({.id = seqparAttnDelta,
                               .name = "delta",
                               .function = "delta_rule",
                               .paper = "DeltaNet (arXiv 2406.06484)",
                               .transition = seqparScanMatrix,
                               .gateCount = 1,
                               .gateRows = {GateRow{kBeta, seqparAttnGatePerToken}},
                               .makeHost = makeDeltaPasses,
                               .whyNoKernel = whyNoDeltaKernel,
                               .makeDevice = kMakeDevice});
const RegisteredFamily kGatedDelta({.id = seqparAttnGatedDelta,
                                    .name = "gated_delta",
                                    .function = "gated_delta_rule",
                                    .paper = "Gated DeltaNet (arXiv 2412.06464)",
                                    .transition = seqparScanMatrix,
                                    .gateCount = 2,
                                    .gateRows = {GateRow{kLogDecay, seqparAttnGatePerToken},
                                                 GateRow{kBeta, seqparAttnGatePerToken}},
                                    .makeHost = makeDeltaPasses,
                                    .whyNoKernel = whyNoDeltaKernel,
                                    .makeDevice = kMakeDevice});
const RegisteredFamily kKda({.id = seqparAttnKda,
                             .name = "kda",
                             .function = "kda",
                             .paper = "Kimi Delta Attention (arXiv 2510.26692)",
                             .transition = seqparScanMatrix,
                             .gateCount = 2,
                             .gateRows = {GateRow{kLogDecay, seqparAttnGatePerChannel},
                                          GateRow{kBeta, seqparAttnGatePerToken}},
                             .makeHost = makeDeltaPasses,
                             .whyNoKernel = whyNoDeltaKernel,
                             .makeDevice = kMakeDevice});

}  // namespace
}  // namespace seqpar::attn::linear
