// The passes on a GPU: launches of kernels/attn/short_conv.
#include "attn/short_conv/passes.h"
#include "device/upload.h"

namespace seqpar::attn::short_conv {
namespace {

void check(int error, const char* launch) {
  checkCuda(static_cast<cudaError_t>(error), launch);
}

class DevicePasses final : public Passes {
 public:
  DevicePasses(const Shape& shape, bool training, Exec& exec) : shape_(shape), training_(training), exec_(exec) {}

  void carve(Arena& arena) override {
    before_ = static_cast<uint8_t*>(arena.take(shape_.tokens));
    if (!training_) return;
    behind_ = static_cast<uint8_t*>(arena.take(shape_.tokens));
    terms_ = static_cast<float*>(arena.take(termsSize(task({}))));
  }
  void open() override {
    const CurrentDevice current(exec_.device());
    upload(before_, shape_.before.data(), shape_.before.size());
    if (training_) upload(behind_, shape_.behind.data(), shape_.behind.size());
  }

  void forward(const Arrays& arrays, size_t first, size_t last) override {
    check(launchForward(task(arrays), static_cast<int64_t>(first), static_cast<int64_t>(last), exec_.main()),
          "short convolution");
  }
  void edgeGradients(const Arrays& arrays, float* edge) override {
    auto edges = task(arrays);
    edges.edge = edge;
    check(launchEdgeGradients(edges, exec_.main()), "short convolution's edge gradients");
  }
  void backward(const Arrays& arrays) override {
    check(launchBackward(task(arrays), exec_.main()), "short convolution's gradients");
  }

 private:
  ConvTask task(const Arrays& arrays) const {
    ConvTask task{arrays};
    task.batch = static_cast<int64_t>(shape_.batch);
    task.tokens = static_cast<int64_t>(shape_.tokens);
    task.channels = static_cast<int64_t>(shape_.channels);
    task.width = static_cast<int>(shape_.width);
    task.silu = shape_.silu;
    task.type = shape_.type;
    task.weightType = shape_.weightType;
    task.before = before_;
    task.behind = behind_;
    task.edgeTokens = static_cast<int64_t>(shape_.edge());
    task.terms = terms_;
    return task;
  }

  const Shape& shape_;
  bool training_;
  Exec& exec_;
  uint8_t *before_ = nullptr, *behind_ = nullptr;
  float* terms_ = nullptr;
};

}  // namespace

std::unique_ptr<Passes> makeDevicePasses(const Shape& shape, bool training, Exec& exec) {
  return std::make_unique<DevicePasses>(shape, training, exec);
}

}  // namespace seqpar::attn::short_conv
