#include "attn/problem/operator.h"

namespace seqpar::attn {

Tensor queryTensor(const Problem& p, const seqparAttnTensor_t& tensor) {
  return tensorOf(tensor, p.type(), p.desc.batch, p.tokens(), p.softmax() ? p.desc.heads : p.desc.kvHeads,
                  p.desc.headDim);
}

Tensor keyTensor(const Problem& p, const seqparAttnTensor_t& tensor) {
  return tensorOf(tensor, p.type(), p.desc.batch, p.kvTokens(), p.desc.kvHeads, p.desc.headDim);
}

Tensor valueTensor(const Problem& p, const seqparAttnTensor_t& tensor) {
  return tensorOf(tensor, p.type(), p.desc.batch, p.kvTokens(), p.softmax() ? p.desc.kvHeads : p.desc.heads,
                  p.desc.valueDim);
}

Tensor outTensor(const Problem& p, const seqparAttnTensor_t& tensor) {
  return tensorOf(tensor, p.type(), p.desc.batch, p.tokens(), p.desc.heads, p.desc.valueDim);
}

Rows lseRows(const Problem& p, const float* lse) {
  return denseRows(const_cast<float*>(lse), p.desc.batch, p.desc.heads, p.tokens());
}

}  // namespace seqpar::attn
