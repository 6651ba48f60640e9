// The families whose transition is a number or a vector: their rows.
#include "attn/linear/device/parts.h"
#include "attn/linear/families/decay/passes.h"

namespace seqpar::attn::linear {
namespace {

#ifdef SEQPAR_ATTN_CUDA
constexpr auto kMakeDevice = makeDevicePasses;
#else
constexpr auto kMakeDevice = decltype(Family::makeDevice){};
#endif

const RegisteredFamily kGla({.id = seqparAttnGla,
                             .name = "gla",
                             .function = "gla",
                             .paper = "GLA (arXiv 2312.06635)",
                             .transition = seqparScanDiag,
                             .gateCount = 1,
                             .gateRows = {GateRow{kLogDecay, seqparAttnGatePerChannel}, kInputGate},
                             .makeHost = makeDecayPasses,
                             .whyNoKernel = whyNoKernel,
                             .makeDevice = kMakeDevice});
const RegisteredFamily kScalar({.id = seqparAttnScalar,
                                .name = "scalar",
                                .function = "simple_gla",
                                .paper = "Mamba-2 (arXiv 2405.21060)",
                                .transition = seqparScanScalar,
                                .gateCount = 1,
                                .gateRows = {GateRow{kLogDecay, seqparAttnGatePerToken}, kInputGate},
                                .makeHost = makeDecayPasses,
                                .whyNoKernel = whyNoKernel,
                                .makeDevice = kMakeDevice});
const RegisteredFamily kFixed({.id = seqparAttnFixed,
                               .name = "fixed",
                               .function = "retention",
                               .paper = "RetNet (arXiv 2307.08621)",
                               .transition = seqparScanScalar,
                               .gateCount = 1,
                               .gateRows = {GateRow{kLogDecay, seqparAttnGatePerHead}, kInputGate},
                               .makeHost = makeDecayPasses,
                               .whyNoKernel = whyNoKernel,
                               .makeDevice = kMakeDevice});
const RegisteredFamily kSum({.id = seqparAttnSum,
                             .name = "sum",
                             .function = "linear_attention",
                             .paper = "linear attention (arXiv 2006.16236)",
                             .transition = seqparScanSum,
                             .gateCount = 0,
                             .gateRows = {kInputGate},
                             .makeHost = makeDecayPasses,
                             .whyNoKernel = whyNoKernel,
                             .makeDevice = kMakeDevice});

}  // namespace
}  // namespace seqpar::attn::linear
