// What an algorithm makes of a plan: the interface that softmax and linear attention share.
#pragma once

#include <memory>
#include <string>

#include "attn/exec/exec.h"
#include "attn/problem/problem.h"

namespace seqpar::attn {

/// An algorithm at work on one problem. Made at Create; nothing is sent before open().
class Operator {
 public:
  virtual ~Operator() = default;

  /// Takes all workspace. Runs as Arena says, at Create and at Prepare.
  virtual void carve(Arena& arena) = 0;
  /// Takes what forward leaves for backward in the caller's memory, of problems that reserve some. Runs as Arena says,
  /// at Create and before each call.
  virtual void carveReserve(Arena&) {}
  /// Collective: opens rings and groups, builds kernels. Throws Error.
  virtual void open() = 0;

  /// Enqueue on the Exec, whose call has begun. Arguments are checked, and strides that were 0 are filled in.
  virtual void forward(const seqparAttnForwardArgs_t& args) = 0;
  virtual void backward(const seqparAttnBackwardArgs_t& args) = 0;

  /// For seqparAttnPlanExplain(): what computes.
  virtual std::string blockName() const = 0;
};

/// Views of the arguments, by the problem's shapes.
Tensor queryTensor(const Problem& problem, const seqparAttnTensor_t& given);  ///< q, dq
Tensor keyTensor(const Problem& problem, const seqparAttnTensor_t& given);    ///< k, dk
Tensor valueTensor(const Problem& problem, const seqparAttnTensor_t& given);  ///< v, dv
Tensor outTensor(const Problem& problem, const seqparAttnTensor_t& given);    ///< out, dOut
/// softmax: lse. A caller's pointer to const is only read through.
Rows lseRows(const Problem& problem, const float* given);

}  // namespace seqpar::attn
