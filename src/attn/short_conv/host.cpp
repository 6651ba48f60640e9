// The passes on a host: blocks of channels, each on a thread.
#include <algorithm>

#include "attn/exec/host.h"
#include "attn/short_conv/kernels.h"

namespace seqpar::attn::short_conv {
namespace {

class HostPasses final : public Passes {
 public:
  HostPasses(const Shape& shape, HostExec& exec) : shape_(shape), exec_(exec) {}

  void carve(Arena& arena) override {
    const size_t numbers = static_cast<size_t>(exec_.pool().threads()) * scratchNumbers(shape_);
    scratch_ = static_cast<float*>(arena.take(numbers * sizeof(float)));
  }
  void open() override {}

  void forward(const Arrays& arrays, size_t first, size_t last) override {
    if (first >= last) return;
    exec_.launch([this, arrays, first, last] {
      // A task is a block of channels and a range of tokens.
      constexpr size_t kStretch = 4 * kTokens;
      const size_t stretches = (last - first + kStretch - 1) / kStretch;
      exec_.pool().each(blocksOf(shape_) * stretches, [&](size_t task, int thread) {
        const size_t begin = first + task % stretches * kStretch;
        short_conv::forward(shape_, arrays, task / stretches, begin, std::min(begin + kStretch, last), scratch(thread));
      });
    });
  }
  void edgeGradients(const Arrays& arrays, float* edge) override {
    exec_.launch([this, arrays, edge] {
      exec_.pool().each(blocksOf(shape_), [&](size_t block, int thread) {
        short_conv::edgeGradients(shape_, arrays, block, edge, scratch(thread));
      });
    });
  }
  void backward(const Arrays& arrays) override {
    exec_.launch([this, arrays] {
      exec_.pool().each(blocksOf(shape_), [&](size_t block, int thread) {
        short_conv::backward(shape_, arrays, block, scratch(thread));
      });
    });
  }

 private:
  float* scratch(int thread) const { return scratch_ + static_cast<size_t>(thread) * scratchNumbers(shape_); }

  const Shape& shape_;
  HostExec& exec_;
  float* scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Passes> makeHostPasses(const Shape& shape, Exec& exec) {
  return std::make_unique<HostPasses>(shape, dynamic_cast<HostExec&>(exec));
}

std::unique_ptr<Passes> makePasses(const Shape& shape, bool training, Exec& exec) {
#ifdef SEQPAR_ATTN_CUDA
  if (exec.device() != SEQPAR_HOST_DEVICE) return makeDevicePasses(shape, training, exec);
#endif
  static_cast<void>(training);
  return makeHostPasses(shape, exec);
}

}  // namespace seqpar::attn::short_conv
