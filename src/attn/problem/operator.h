// The interface of an algorithm that softmax and linear attention share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/block/block.h"
#include "attn/exec/exec.h"
#include "attn/problem/problem.h"

namespace seqpar::attn {

/// A number of a plan, for seqparAttnPlanExplain().
struct Count {
  const char* name;
  int64_t value;
};

/// An algorithm instantiated for one problem. Built at Create; sends nothing before open().
class Operator {
 public:
  virtual ~Operator() = default;

  /// Takes all workspace. Runs twice, as described for Arena, at Create and at Prepare.
  virtual void carve(Arena& arena) = 0;
  /// For problems that reserve memory: takes the caller's memory for data that forward leaves for backward. Runs twice,
  /// as described for Arena, at Create and before each call.
  virtual void carveReserve(Arena&) {}
  /// Collective: opens rings and groups, builds kernels. Throws Error.
  virtual void open() = 0;

  /// Throw InvalidArgument in the name of `call` for tensors that the operator's kernels cannot read. Nothing is
  /// enqueued or sent.
  virtual void check(const char* /*call*/, const seqparAttnForwardArgs_t&) const {}
  virtual void check(const char* /*call*/, const seqparAttnBackwardArgs_t&) const {}
  /// Enqueue on the Exec, inside a call. Arguments are checked, and strides of 0 are filled in.
  virtual void forward(const seqparAttnForwardArgs_t& args) = 0;
  virtual void backward(const seqparAttnBackwardArgs_t& args) = 0;

  /// For seqparAttnPlanExplain(): the block kernel.
  virtual std::string blockName() const = 0;
  /// Likewise: further numbers.
  virtual std::vector<Count> counts() const { return {}; }
};

/// Views of the arguments, by the problem's shapes.
Tensor queryTensor(const Problem& problem, const seqparAttnTensor_t& tensor);  ///< q, dq
Tensor keyTensor(const Problem& problem, const seqparAttnTensor_t& tensor);    ///< k, dk
Tensor valueTensor(const Problem& problem, const seqparAttnTensor_t& tensor);  ///< v, dv
Tensor outTensor(const Problem& problem, const seqparAttnTensor_t& tensor);    ///< out, dOut
/// q, k and v of forward or backward.
template <typename Args>
BlockInputs blockInputs(const Problem& problem, const Args& args) {
  return {queryTensor(problem, args.q), keyTensor(problem, args.k), valueTensor(problem, args.v)};
}
/// softmax: lse. A caller's pointer to const is only read.
Rows lseRows(const Problem& problem, const float* lse);

}  // namespace seqpar::attn
