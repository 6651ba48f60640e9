// Tensors that the kernels of linear attention on GPUs cannot read or write are refused by name.
#include <catch2/catch.hpp>
#include <string>

#include "attn/linear/device/parts.h"
#include "base/error.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)
using linear::Gradients;
using linear::Inputs;

constexpr int64_t kTokens = 3, kHeads = 2, kDim = 16;

alignas(16) std::byte memory[4096];

struct Call {
  LinearProblem shape;
  Inputs in;
  Tensor out;
  Gradients to;

  Call(seqparDataType_t type, Gate gate, seqparDataType_t gateType = seqparFloat32, int64_t batch = 2) {
    shape.batch = batch;
    shape.tokens = kTokens;
    shape.heads = shape.qkHeads = kHeads;
    shape.dk = shape.dv = kDim;
    shape.type = type;
    shape.gate = gate;
    shape.gateType = gateType;
    const Tensor rows = denseTensor(memory, type, batch, kTokens, kHeads, kDim);
    in.q = in.k = in.v = out = to.dOut = to.dq = to.dk = to.dv = rows;
    const int64_t width = gate == Gate::Channel ? kDim : 1;
    in.gates[0] = to.dGates[0] = denseTensor(memory, gateType, batch, kTokens, kHeads, width);
  }

  /// The errors of both passes, or "".
  std::string said(bool readsValues = true) const {
    try {
      linear::AlignmentCheck("call", shape).inputs(in, readsValues).rows("out", out).gradients(to);
    } catch (const seqpar::Error& error) {
      CHECK(error.result() == seqparInvalidArgument);
      return error.what();
    }
    return "";
  }
};

/// Calls body(name, tensor) for all tensors of a call with rows of elements.
template <class Body>
void each(Call& call, const Body& body) {
  body("q", call.in.q);
  body("k", call.in.k);
  body("v", call.in.v);
  body("gates[0]", call.in.gates[0]);
  body("out", call.out);
  body("dOut", call.to.dOut);
  body("dq", call.to.dq);
  body("dk", call.to.dk);
  body("dv", call.to.dv);
  body("dGates[0]", call.to.dGates[0]);
}

/// One element behind a multiple of 16 bytes, or with rows of one more element.
void misplace(Tensor& tensor, bool byAddress) {
  if (byAddress) {
    tensor.data = static_cast<std::byte*>(tensor.data) + bytesOf(tensor.type);
  } else {
    ++tensor.tokenStride;
  }
}

TEST_CASE("addresses and strides that GPU kernels of linear attention cannot read are refused by name") {
  for (const bool byAddress : {true, false}) {
    for (const auto type : {seqparBfloat16, seqparFloat16}) {
      for (const auto gateType : {seqparFloat32, seqparBfloat16}) {
        Call call(type, Gate::Channel, gateType);
        CHECK(call.said() == "");
        each(call, [&](const std::string& name, Tensor& tensor) {
          const Tensor good = tensor;
          misplace(tensor, byAddress);
          const auto text = call.said();
          CAPTURE(name, byAddress, type, text);
          CHECK(text.find("call: args->" + name + " is at 0x") == 0);
          CHECK(text.find("expected multiples of 16 bytes") != std::string::npos);
          if (name == "v") CHECK(call.said(false) == "");  // the kernels read its products with the input gate
          tensor = good;
        });
        call.to.dGates[0].data = nullptr;  // not requested
        CHECK(call.said() == "");
      }
    }
    Call tokens(seqparBfloat16, Gate::Token);
    misplace(tokens.in.gates[0], byAddress);
    misplace(tokens.to.dGates[0], byAddress);
    CHECK(tokens.said() == "");
    Call full(seqparFloat32, Gate::Channel);
    each(full, [&](const std::string&, Tensor& tensor) { misplace(tensor, byAddress); });
    CHECK(full.said() == "");
  }
}

TEST_CASE("strides of dimensions of size 1 have no effect on GPU kernels of linear attention") {
  Call call(seqparBfloat16, Gate::Channel, seqparFloat32, 1);
  each(call, [](const std::string&, Tensor& tensor) { tensor.batchStride = 101; });
  CHECK(call.said() == "");
  CHECK(linear::inputOf(call.in.q).batch % 8 == 0);
  CHECK(linear::inputOf(call.in.q).token == kHeads * kDim);
}

}  // namespace
