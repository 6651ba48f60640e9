#include "attn/api/arguments.h"

#include <algorithm>
#include <array>

#include "attn/linear/operator.h"

namespace seqpar::attn {
namespace {

using Use = ArgumentCheck::Use;

void checkSoftmax(ArgumentCheck& check, const Problem& p, const seqparAttnForwardArgs_t& args) {
  const int64_t rows = p.desc.batch * p.desc.heads * p.tokens();
  check.numbers("args->lse", args.lse, rows, p.training(), Use::Output);
  if (p.desc.sinks != 0) check.numbers("args->sinks", args.sinks, p.desc.heads, true, Use::Input);
}

void checkSoftmax(ArgumentCheck& check, const Problem& p, const seqparAttnBackwardArgs_t& args) {
  const int64_t rows = p.desc.batch * p.desc.heads * p.tokens();
  check.tensor("args->out", outTensor(p, args.out), Use::Input);
  check.numbers("args->lse", args.lse, rows, true, Use::Input);
  if (p.desc.sinks == 0) return;
  check.numbers("args->sinks", args.sinks, p.desc.heads, true, Use::Input);
  check.numbers("args->dSinks", args.dSinks, p.desc.heads, true, Use::Output);
}

int64_t statesOf(const Problem& p) {
  return p.desc.heads * p.desc.headDim * p.desc.valueDim * (p.packed() ? 1 : p.desc.batch);
}

/// Elements of `initial` and its gradient.
int64_t initialsOf(const Problem& p) {
  return statesOf(p) * (p.packed() ? p.desc.sequences : 1);
}

constexpr std::array<const char*, SEQPAR_ATTN_MAX_GATES> kGates{"args->gates[0]", "args->gates[1]", "args->gates[2]",
                                                                "args->gates[3]"};
constexpr std::array<const char*, SEQPAR_ATTN_MAX_GATES> kGateGradients{"args->dGates[0]", "args->dGates[1]",
                                                                        "args->dGates[2]", "args->dGates[3]"};

/// The gates of the problem's family; gradients, which may be absent, with Use::Output.
void checkGates(ArgumentCheck& check, const Problem& p, const seqparAttnTensor_t* gates, Use use) {
  const auto tensors = linear::gateTensors(p, gates);
  const size_t count = linear::findFamily(p.desc.family)->rowsWith(p.desc.inputGate != 0).size();
  for (size_t i = 0; i < count; ++i) {
    if (use == Use::Output && gates[i].data == nullptr) continue;
    check.tensor((use == Use::Output ? kGateGradients : kGates)[i], tensors[i], use);
  }
}

void checkLinear(ArgumentCheck& check, const Problem& p, const seqparAttnForwardArgs_t& args) {
  checkGates(check, p, args.gates, Use::Input);
  check.numbers("args->initial", args.initial, initialsOf(p), false, Use::Input);
  check.numbers("args->saved", args.saved, statesOf(p), p.training(), Use::Output);
  check.numbers("args->final", args.final, statesOf(p), false, Use::Output);
}

void checkLinear(ArgumentCheck& check, const Problem& p, const seqparAttnBackwardArgs_t& args) {
  checkGates(check, p, args.gates, Use::Input);
  check.numbers("args->saved", args.saved, statesOf(p), true, Use::Input);
  if (p.packed()) check.numbers("args->initial", args.initial, initialsOf(p), false, Use::Input);
  if (p.rank() == p.ranks() - 1) check.numbers("args->dFinal", args.dFinal, statesOf(p), false, Use::Input);
  checkGates(check, p, args.dGates, Use::Output);
  if (p.packed() || p.rank() == 0) check.numbers("args->dInitial", args.dInitial, initialsOf(p), false, Use::Output);
}

/// The states of linear attention, one per batch entry and head; empty without `data` or for softmax attention.
Tensor statesTensor(const Problem& p, float* data) {
  if (p.softmax() || data == nullptr) return {};
  return denseTensor(data, seqparFloat32, p.desc.batch, 1, p.desc.heads, p.desc.headDim * p.desc.valueDim);
}

/// Inputs common to forward and backward.
template <typename Args>
void checkInputs(ArgumentCheck& check, const Problem& p, const Args& args) {
  check.tensor("args->q", queryTensor(p, args.q), Use::Input);
  check.tensor("args->k", keyTensor(p, args.k), Use::Input);
  check.tensor("args->v", valueTensor(p, args.v), Use::Input);
}

/// Arguments of only one family.
template <typename Args>
void checkRest(ArgumentCheck& check, const Problem& p, const Args& args) {
  if (p.softmax()) {
    checkSoftmax(check, p, args);
  } else {
    checkLinear(check, p, args);
  }
  check.overlaps();
}

/// Written elements must have distinct addresses: a dimension must step over the extent of all dimensions with shorter
/// strides.
void requireRowsDisjoint(const char* call, const char* name, const Tensor& tensor) {
  struct Dimension {
    const char* name;
    int64_t stride, count;
  };
  std::array dimensions{Dimension{"batchStride", tensor.batchStride, tensor.batch},
                        Dimension{"tokenStride", tensor.tokenStride, tensor.tokens},
                        Dimension{"headStride", tensor.headStride, tensor.heads}};
  std::sort(dimensions.begin(), dimensions.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  int64_t filled = tensor.dim;
  for (const auto& d : dimensions) {
    if (d.count < 2) continue;
    if (d.stride < filled) {
      fail(seqparInvalidArgument, call, ": ", name, ".", d.name, " is ", d.stride, ", expected at least ", filled,
           ", so that no rows of an output overlap");
    }
    filled += d.stride * (d.count - 1);
  }
}

}  // namespace

void ArgumentCheck::tensor(const char* name, const Tensor& tensor, Use use) {
  if (tensor.elements() == 0) return;
  if (tensor.data == nullptr) {
    fail(seqparInvalidArgument, call_, ": ", name, ".data is NULL, expected ", tensor.elements(), " elements");
  }
  const struct {
    const char* name;
    int64_t stride, count;
  } strides[] = {{"batchStride", tensor.batchStride, tensor.batch},
                 {"tokenStride", tensor.tokenStride, tensor.tokens},
                 {"headStride", tensor.headStride, tensor.heads}};
  const size_t each = bytesOf(tensor.type);
  size_t bytes = countBytes(call_, name, {{"length", tensor.dim}, {"bytes", each}});
  for (const auto& s : strides) {
    if (s.stride < 0 || (s.count > 1 && s.stride < tensor.dim)) {
      fail(seqparInvalidArgument, call_, ": ", name, ".", s.name, " is ", s.stride, ", expected at least ", tensor.dim,
           ", the length of a head, or 0 for all three strides");
    }
    if (s.count < 2) continue;
    bytes = addBytes(call_, name, bytes,
                     countBytes(call_, name, {{"steps", s.count - 1}, {s.name, s.stride}, {"bytes", each}}));
  }
  if (use == Use::Output) requireRowsDisjoint(call_, name, tensor);
  requireArray(call_, name, tensor.data, bytes, each);
  arrays_.push_back({{name, tensor.data, bytes}, use == Use::Output, tensor.dense()});
}

void ArgumentCheck::numbers(const char* name, const float* data, int64_t count, bool required, Use use) {
  if (count == 0) return;
  if (data == nullptr) {
    if (!required) return;
    fail(seqparInvalidArgument, call_, ": ", name, " is NULL, expected ", count, " numbers");
  }
  const size_t bytes = countBytes(call_, name, {{"numbers", count}, {"bytes", sizeof(float)}});
  requireArray(call_, name, data, bytes, alignof(float));
  arrays_.push_back({{name, data, bytes}, use == Use::Output, true});
}

void ArgumentCheck::reserve(const void* data, size_t bytes, Use use) {
  constexpr const char* kName = "args->reserve";
  constexpr size_t kAlignment = 16;  // of tensors on GPUs
  if (bytes == 0) return;
  if (data == nullptr) {
    fail(seqparInvalidArgument, call_, ": ", kName, " is NULL, expected ", bytes,
         " bytes, seqparAttnPlanReserveSize()'s");
  }
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) {
    fail(seqparInvalidArgument, call_, ": ", kName, " is ", data, ", expected a multiple of ", kAlignment);
  }
  requireArray(call_, kName, data, bytes, 1);
  arrays_.push_back({{kName, data, bytes}, use == Use::Output, true});
}

void ArgumentCheck::overlaps() const {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    for (size_t j = i + 1; j < arrays_.size(); ++j) {
      const Array &a = arrays_[i], &b = arrays_[j];
      if (!a.output && !b.output) continue;
      // Strided arrays may be interleaved in each other's gaps.
      if (a.buffer.data == b.buffer.data || (a.dense && b.dense)) requireDisjoint(call_, a.buffer, b.buffer, false);
    }
  }
}

void checkArguments(const char* call, const Problem& p, const seqparAttnForwardArgs_t& args, size_t reserveBytes) {
  ArgumentCheck check(call);
  checkInputs(check, p, args);
  check.tensor("args->out", outTensor(p, args.out), Use::Output);
  check.reserve(args.reserve, reserveBytes, Use::Output);
  checkRest(check, p, args);
}

void checkArguments(const char* call, const Problem& p, const seqparAttnBackwardArgs_t& args, size_t reserveBytes) {
  ArgumentCheck check(call);
  checkInputs(check, p, args);
  check.tensor("args->dOut", outTensor(p, args.dOut), Use::Input);
  check.tensor("args->dq", queryTensor(p, args.dq), Use::Output);
  check.tensor("args->dk", keyTensor(p, args.dk), Use::Output);
  check.tensor("args->dv", valueTensor(p, args.dv), Use::Output);
  check.reserve(args.reserve, reserveBytes, Use::Input);
  checkRest(check, p, args);
}

std::array<Tensor, 3> outputsOf(const Problem& p, const seqparAttnForwardArgs_t& args) {
  return {outTensor(p, args.out), statesTensor(p, args.saved), statesTensor(p, args.final)};
}

std::array<Tensor, 4> outputsOf(const Problem& p, const seqparAttnBackwardArgs_t& args) {
  return {queryTensor(p, args.dq), keyTensor(p, args.dk), valueTensor(p, args.dv),
          statesTensor(p, p.packed() || p.rank() != 0 ? nullptr : args.dInitial)};
}

}  // namespace seqpar::attn
