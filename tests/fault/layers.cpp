#include "layers.h"

#include <cmath>

#include "seqpar/attn.h"

namespace seqpar::test {
namespace {

constexpr int64_t kTokens = 300, kHeads = 2;

/// All queries, keys, values and gradients of outputs are 1, without decay: out of token t is t + 1, and the gradient
/// of its value is the number of tokens from it to the end.
class Layer {
 public:
  Layer(seqparComm_t comm, int rank, int ranks)
      : first_(rank * kTokens), all_(ranks * kTokens), ones_(kTokens * kHeads, 1.0f), saved_(kHeads) {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = seqparAttnSum;
    desc.tokens = all_;
    desc.heads = kHeads;
    desc.headDim = 1;
    desc.scale = 1;
    made_ = seqparAttnPlanCreate(&plan_, &desc, comm);
    if (made_ == seqparSuccess) made_ = seqparAttnPlanPrepare(plan_, nullptr, 0);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() { seqparAttnPlanDestroy(plan_); }

  seqparResult_t made() const { return made_; }

  seqparResult_t run() {
    for (auto* array : {&out_, &dq_, &dk_, &dv_}) array->assign(ones_.size(), NAN);
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q.data = forward.k.data = forward.v.data = ones_.data();
    forward.out.data = out_.data();
    forward.saved = saved_.data();
    const auto result = seqparAttnForward(plan_, &forward, nullptr);
    if (result != seqparSuccess) return result;
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q.data = backward.k.data = backward.v.data = backward.dOut.data = ones_.data();
    backward.saved = saved_.data();
    backward.dq.data = dq_.data();
    backward.dk.data = dk_.data();
    backward.dv.data = dv_.data();
    return seqparAttnBackward(plan_, &backward, nullptr);
  }

  bool right() const {
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto at = static_cast<size_t>(t * kHeads + h);
        if (out_[at] != static_cast<float>(first_ + t + 1) || dv_[at] != static_cast<float>(all_ - first_ - t)) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  int64_t first_, all_;
  std::vector<float> ones_, saved_, out_, dq_, dk_, dv_;
  seqparAttnPlan_t plan_ = nullptr;
  seqparResult_t made_;
};

}  // namespace

void layersUntilFailure(seqparComm_t comm, Report& report) {
  {
    int ranks = 0;
    seqparCommCount(comm, &ranks);
    Layer layer(comm, report.rank, ranks);
    auto result = layer.made();
    for (; result == seqparSuccess; ++report.scans) {
      result = layer.run();
      if (result == seqparSuccess && !layer.right()) ++report.wrong;
    }
    note(report, result, comm);
  }
  seqparCommDestroy(comm);
}

}  // namespace seqpar::test
