// The table of families: lists, errors, Python's functions and the tests read its rows.
#include "attn/linear/families/family.h"

namespace seqpar::attn::linear {
namespace {

constexpr std::array kFamilies{
    Family{seqparAttnGla,
           "gla",
           "GLA (arXiv 2312.06635)",
           seqparScanDiag,
           1,
           {GateRow{kLogDecay, seqparAttnGatePerChannel}, kInputGate}},
    Family{seqparAttnScalar,
           "scalar",
           "Mamba-2 (arXiv 2405.21060)",
           seqparScanScalar,
           1,
           {GateRow{kLogDecay, seqparAttnGatePerToken}, kInputGate}},
    Family{seqparAttnFixed,
           "fixed",
           "RetNet (arXiv 2307.08621)",
           seqparScanScalar,
           1,
           {GateRow{kLogDecay, seqparAttnGatePerHead}, kInputGate}},
    Family{seqparAttnSum, "sum", "linear attention (arXiv 2006.16236)", seqparScanSum, 0, {kInputGate}},
    Family{seqparAttnDelta,
           "delta",
           "DeltaNet (arXiv 2406.06484)",
           seqparScanMatrix,
           1,
           {GateRow{kBeta, seqparAttnGatePerToken}}},
    Family{seqparAttnGatedDelta,
           "gated_delta",
           "Gated DeltaNet (arXiv 2412.06464)",
           seqparScanMatrix,
           2,
           {GateRow{kLogDecay, seqparAttnGatePerToken}, GateRow{kBeta, seqparAttnGatePerToken}}},
    Family{seqparAttnKda,
           "kda",
           "Kimi Delta Attention (arXiv 2510.26692)",
           seqparScanMatrix,
           2,
           {GateRow{kLogDecay, seqparAttnGatePerChannel}, GateRow{kBeta, seqparAttnGatePerToken}}},
};
static_assert(kFamilies.size() + 1 == SEQPAR_ATTN_FAMILIES, "a row for each family, and softmax attention");

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family* findFamily(int id) {
  for (const auto& family : kFamilies) {
    if (family.id == id) return &family;
  }
  return nullptr;
}

Tensor gateTensor(const GateRow& row, const seqparAttnTensor_t& given, int type, const GateSizes& sizes) {
  const auto number = static_cast<seqparDataType_t>(type);
  if (row.shape == seqparAttnGatePerHead) return denseTensor(given.data, number, 1, 1, sizes.heads, 1);
  auto tensor = denseTensor(given.data, number, sizes.batch, sizes.tokens, sizes.heads,
                            row.shape == seqparAttnGatePerChannel ? sizes.headDim : 1);
  if (given.batchStride != 0 || given.tokenStride != 0 || given.headStride != 0) {
    tensor.batchStride = given.batchStride;
    tensor.tokenStride = given.tokenStride;
    tensor.headStride = given.headStride;
  }
  return tensor;
}

Gates gateTensors(std::span<const GateRow> rows, const seqparAttnTensor_t* given, const int* types,
                  const GateSizes& sizes) {
  Gates gates;
  for (size_t i = 0; i < rows.size(); ++i) gates[i] = gateTensor(rows[i], given[i], types[i], sizes);
  return gates;
}

}  // namespace seqpar::attn::linear
