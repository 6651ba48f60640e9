// The C calls of seqpar/short_conv.h.
#include <functional>
#include <initializer_list>
#include <mutex>
#include <set>

#include "attn/boundary.h"
#include "attn/short_conv/conv.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"

struct seqparShortConv {
  seqparShortConv(const char* call, const seqparShortConvDesc_t* desc, seqparComm_t comm) : conv(call, desc, comm) {}
  seqpar::attn::short_conv::Conv conv;
};

namespace seqpar::attn {
namespace {

using short_conv::Conv;

/// The convolutions that there are, so that a handle that is none is an error.
class Handles {
 public:
  void add(seqparShortConv_t handle) {
    const std::lock_guard lock(mutex_);
    handles_.insert(handle);
  }
  bool remove(seqparShortConv_t handle) {
    const std::lock_guard lock(mutex_);
    return handles_.erase(handle) > 0;
  }
  bool has(seqparShortConv_t handle) const {
    const std::lock_guard lock(mutex_);
    return handles_.count(handle) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<seqparShortConv_t> handles_;
};

Handles& handles() {
  static Handles all;
  return all;
}

Conv& find(const char* call, seqparShortConv_t conv) {
  if (!handles().has(conv)) {
    fail(seqparInvalidArgument, call, ": conv is ", static_cast<void*>(conv),
         ", expected one of seqparShortConvCreate()");
  }
  return conv->conv;
}

struct Buffer {
  const char* name;
  const void* data;
  size_t bytes;
  bool required, output;
  size_t alignment;
};

void checkBuffers(const char* call, std::initializer_list<Buffer> buffers) {
  const std::less<> before;
  for (const auto& a : buffers) {
    if (a.required && a.bytes > 0 && a.data == nullptr) {
      fail(seqparInvalidArgument, call, ": ", a.name, " is NULL, expected ", a.bytes, " bytes");
    }
    requireArray(call, a.name, a.data, a.bytes, a.alignment);
    for (const auto& b : buffers) {
      if (&a == &b || !a.output || a.data == nullptr || b.data == nullptr) continue;
      const auto* const first = static_cast<const std::byte*>(a.data);
      const auto* const second = static_cast<const std::byte*>(b.data);
      if (before(first, second + b.bytes) && before(second, first + a.bytes)) {
        fail(seqparInvalidArgument, call, ": ", a.name, " at ", a.data, " (", a.bytes, " bytes) overlaps ", b.name,
             " at ", b.data, " (", b.bytes, " bytes), expected outputs to be apart from all other arrays");
      }
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
    if (conv == nullptr) seqpar::fail(seqparInvalidArgument, kCall, ": conv is NULL");
    *conv = nullptr;
    auto made = std::make_unique<seqparShortConv>(kCall, desc, comm);
    handles().add(made.get());
    *conv = made.release();
  });
}

seqparResult_t seqparShortConvDestroy(seqparShortConv_t conv) {
  constexpr const char* kCall = "seqparShortConvDestroy";
  return guard(kCall, [&] {
    if (conv == nullptr) return;
    find(kCall, conv);
    const std::unique_ptr<seqparShortConv> ended(conv);
    handles().remove(conv);
  });
}

seqparResult_t seqparShortConvForward(seqparShortConv_t conv, const void* x, const void* weight, const void* bias,
                                      void* y, void* stream) {
  constexpr const char* kCall = "seqparShortConvForward";
  return guard(kCall, [&] {
    Conv& found = find(kCall, conv);
    const auto& s = found.shape();
    const size_t each = sizeOf(s.type), weightEach = sizeOf(s.weightType);
    const size_t rows = s.batch * s.tokens * s.channels * each, channels = s.channels * weightEach;
    checkBuffers(kCall, {{"x", x, rows, true, false, each},
                         {"weight", weight, channels * s.width, true, false, weightEach},
                         {"bias", bias, channels, false, false, weightEach},
                         {"y", y, rows, true, true, each}});
    found.forward(x, weight, bias, y, stream);
  });
}

seqparResult_t seqparShortConvBackward(seqparShortConv_t conv, const seqparShortConvBackwardArgs_t* args,
                                       void* stream) {
  constexpr const char* kCall = "seqparShortConvBackward";
  return guard(kCall, [&] {
    Conv& found = find(kCall, conv);
    if (!found.training()) {
      seqpar::fail(seqparInvalidUsage, kCall, ": the convolution was made with training = 0, expected 1");
    }
    const seqparShortConvBackwardArgs_t none = SEQPAR_SHORT_CONV_BACKWARD_INITIALIZER;
    const auto given = seqpar::readVersioned(kCall, "args", args, none);
    const auto& s = found.shape();
    const size_t each = sizeOf(s.type), weightEach = sizeOf(s.weightType);
    const size_t rows = s.batch * s.tokens * s.channels * each, channels = s.channels * weightEach;
    checkBuffers(kCall, {{"x", given.x, rows, true, false, each},
                         {"weight", given.weight, channels * s.width, true, false, weightEach},
                         {"bias", given.bias, channels, false, false, weightEach},
                         {"dy", given.dy, rows, true, false, each},
                         {"dx", given.dx, rows, true, true, each},
                         {"dWeight", given.dWeight, s.channels * s.width * sizeof(float), false, true, alignof(float)},
                         {"dBias", given.dBias, s.channels * sizeof(float), false, true, alignof(float)}});
    found.backward(given, stream);
  });
}
