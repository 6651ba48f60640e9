#include "attn/linear/families/family.h"

#include <array>

namespace seqpar::attn::linear {
namespace {

constexpr std::array kFamilies{
    Family{seqparAttnGla, "gla", "GLA (arXiv 2312.06635)", seqparScanDiag, GateShape::OfChannel},
    Family{seqparAttnScalar, "scalar", "Mamba-2 (arXiv 2405.21060)", seqparScanScalar, GateShape::OfToken},
    Family{seqparAttnFixed, "fixed", "RetNet (arXiv 2307.08621)", seqparScanScalar, GateShape::OfHead},
    Family{seqparAttnSum, "sum", "linear attention (arXiv 2006.16236)", seqparScanSum, GateShape::None},
};

}  // namespace

const Family* findFamily(int id) {
  for (const auto& family : kFamilies) {
    if (family.id == id) return &family;
  }
  return nullptr;
}

Tensor gateTensor(const Family& family, const seqparAttnTensor_t& given, seqparDataType_t type, int64_t batch,
                  int64_t tokens, int64_t heads, int64_t headDim) {
  if (family.gate == GateShape::None) return {};
  if (family.gate == GateShape::OfHead) return denseTensor(given.data, type, 1, 1, heads, 1);
  auto tensor = denseTensor(given.data, type, batch, tokens, heads, decayWidth(family, headDim));
  if (given.batchStride != 0 || given.tokenStride != 0 || given.headStride != 0) {
    tensor.batchStride = given.batchStride;
    tensor.tokenStride = given.tokenStride;
    tensor.headStride = given.headStride;
  }
  return tensor;
}

}  // namespace seqpar::attn::linear
