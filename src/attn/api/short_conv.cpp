// The C calls of seqpar/short_conv.h.
#include <initializer_list>
#include <memory>

#include "attn/boundary.h"
#include "attn/packing.h"
#include "attn/short_conv/conv.h"
#include "base/arguments.h"
#include "base/convert.h"
#include "base/handle_table.h"
#include "base/versioned.h"

namespace seqpar::attn {
namespace {

using short_conv::Conv;

HandleTable<Conv, seqparShortConv_t>& convs() {
  return handleTable<Conv, seqparShortConv_t>();
}

std::shared_ptr<Conv> find(const char* call, seqparShortConv_t conv) {
  return seqpar::require(convs(), conv, call, "conv", "convolution");
}

struct Argument {
  Buffer buffer;
  bool required = false, output = false;
};

void checkArguments(const char* call, std::initializer_list<Argument> all) {
  for (const auto& [buffer, required, output] : all) {
    if (required && buffer.bytes > 0 && buffer.data == nullptr) {
      fail(seqparInvalidArgument, call, ": ", buffer.name, " is NULL, expected ", buffer.bytes, " bytes");
    }
    requireArray(call, buffer.name, buffer.data, buffer.bytes, buffer.alignment);
    if (!output) continue;
    for (const auto& other : all) {
      if (&other.buffer != &buffer) requireDisjoint(call, buffer, other.buffer, false);
    }
  }
}

}  // namespace
}  // namespace seqpar::attn

using seqpar::sizeOf;
using namespace seqpar::attn;

seqparResult_t seqparShortConvCreate(seqparShortConv_t* conv, const seqparShortConvDesc_t* desc, seqparComm_t comm) {
  constexpr const char* kCall = "seqparShortConvCreate";
  return guard(kCall, [&] {
    seqpar::requirePointer(kCall, "conv", conv);
    *conv = nullptr;
    *conv = convs().add(std::make_shared<Conv>(kCall, desc, comm));
  });
}

seqparResult_t seqparShortConvDestroy(seqparShortConv_t conv) {
  constexpr const char* kCall = "seqparShortConvDestroy";
  return guard(kCall, [&] {
    if (conv == nullptr) return;
    find(kCall, conv);
    convs().remove(conv);
  });
}

seqparResult_t seqparShortConvForward(seqparShortConv_t conv, const void* x, const void* weight, const void* bias,
                                      void* y, void* stream) {
  constexpr const char* kCall = "seqparShortConvForward";
  return guard(kCall, [&] {
    const auto found = find(kCall, conv);
    const auto& s = found->shape();
    const size_t each = sizeOf(s.type), weightEach = sizeOf(s.weightType);
    const size_t rows = s.batch * s.tokens * s.channels * each, channels = s.channels * weightEach;
    checkArguments(kCall, {{{"x", x, rows, each}, true, false},
                           {{"weight", weight, channels * s.width, weightEach}, true, false},
                           {{"bias", bias, channels, weightEach}, false, false},
                           {{"y", y, rows, each}, true, true}});
    requireUse(kCall, found->comm(), found->onDevice(), stream);
    found->forward(x, weight, bias, y, stream);
  });
}

seqparResult_t seqparShortConvBackward(seqparShortConv_t conv, const seqparShortConvBackwardArgs_t* args,
                                       void* stream) {
  constexpr const char* kCall = "seqparShortConvBackward";
  return guard(kCall, [&] {
    const auto found = find(kCall, conv);
    if (!found->training()) {
      seqpar::fail(seqparInvalidUsage, kCall, ": the convolution was created with training = 0, expected 1");
    }
    const seqparShortConvBackwardArgs_t none = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
    const auto given = seqpar::readVersioned(kCall, "args", args, none);
    const auto& s = found->shape();
    const size_t each = sizeOf(s.type), weightEach = sizeOf(s.weightType);
    const size_t rows = s.batch * s.tokens * s.channels * each, channels = s.channels * weightEach;
    checkArguments(kCall,
                   {{{"x", given.x, rows, each}, true, false},
                    {{"weight", given.weight, channels * s.width, weightEach}, true, false},
                    {{"bias", given.bias, channels, weightEach}, false, false},
                    {{"dy", given.dy, rows, each}, true, false},
                    {{"dx", given.dx, rows, each}, true, true},
                    {{"dWeight", given.dWeight, s.channels * s.width * sizeof(float), alignof(float)}, false, true},
                    {{"dBias", given.dBias, s.channels * sizeof(float), alignof(float)}, false, true}});
    requireUse(kCall, found->comm(), found->onDevice(), stream);
    found->backward(given, stream);
  });
}
