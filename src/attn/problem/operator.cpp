#include "attn/problem/operator.h"

namespace seqpar::attn {
namespace {

Tensor viewOf(const seqparAttnTensor_t& given, seqparDataType_t type, int64_t batch, int64_t tokens, int64_t heads,
              int64_t dim) {
  if (given.batchStride == 0 && given.tokenStride == 0 && given.headStride == 0) {
    return denseTensor(given.data, type, batch, tokens, heads, dim);
  }
  return {given.data, type, batch, tokens, heads, dim, given.batchStride, given.tokenStride, given.headStride};
}

}  // namespace

Tensor queryTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.tokens(), p.softmax() ? p.desc.heads : p.desc.kvHeads, p.desc.headDim);
}

Tensor keyTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.kvTokens(), p.desc.kvHeads, p.desc.headDim);
}

Tensor valueTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.kvTokens(), p.softmax() ? p.desc.kvHeads : p.desc.heads,
                p.desc.valueDim);
}

Tensor outTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.tokens(), p.desc.heads, p.desc.valueDim);
}

Rows lseRows(const Problem& p, const float* given) {
  return denseRows(const_cast<float*>(given), p.desc.batch, p.desc.heads, p.tokens());
}

}  // namespace seqpar::attn
